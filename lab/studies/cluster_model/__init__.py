"""A model of many engines, to judge placement on clusters that are not here: discrete events, no Ray, no vLLM."""
