"""Model many engines by discrete events, to judge placement on clusters that are not at hand, without Ray or vLLM."""
