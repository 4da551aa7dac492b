"""The machines: Ray, which process runs where, and the doctor that examines them."""
