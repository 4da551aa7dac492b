"""Figures of what runs and simulations wrote; training never imports this folder. The only place that plots."""
