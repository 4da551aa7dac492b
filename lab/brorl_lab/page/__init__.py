"""Build the page about runs that `brorl report` writes and `brorl watch` serves, from the run folders."""
