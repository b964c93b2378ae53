"""vLLM-style scheduling over a pool of KV blocks."""
