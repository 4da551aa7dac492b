"""The page about runs that `brorl report` writes and `brorl watch` serves: what it holds, read off the run folders."""
