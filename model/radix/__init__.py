"""SGLang-style scheduling over a radix tree."""
