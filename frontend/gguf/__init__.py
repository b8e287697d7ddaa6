"""Makes a model directory of a GGUF file: its metadata become the files that Hugging Face models have."""
