"""Why and when a larger N helps: BroRL's mass balance, what N buys in expectation, and its simulator. numpy and scipy
only."""
