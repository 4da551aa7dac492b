"""From a configuration to a running job: what it needs, how it is started on a cluster, how it is looked at."""
