"""Reads what runs and simulations wrote and draws it; training never imports this folder. The only place that plots."""
