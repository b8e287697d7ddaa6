"""Makes a model directory from a GGUF file: the metadata become the files of a Hugging Face model."""
