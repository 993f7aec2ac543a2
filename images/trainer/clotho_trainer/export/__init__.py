"""From a checkpoint to files that other programs run: adapters merged, safetensors or GGUF written, Ollama told."""
