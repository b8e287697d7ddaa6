"""The trainer of the built-in model: generated conversations, tokenizer, training and evaluation."""
