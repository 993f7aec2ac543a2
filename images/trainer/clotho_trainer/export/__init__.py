"""From a checkpoint to files for other programs: adapters merged, safetensors or GGUF written, Ollama supplied."""
