"""GGUF files (llama.cpp's format) as Hugging Face folders: config, tokenizer, fp32 safetensors."""
