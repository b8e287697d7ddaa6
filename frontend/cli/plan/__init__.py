"""`arbora plan`: memory, speed and cost of a model on a device, without loading weights."""
