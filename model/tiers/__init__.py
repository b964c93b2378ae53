"""Host (G2) and disk (G3) tiers below the GPU block pool (G1)."""
