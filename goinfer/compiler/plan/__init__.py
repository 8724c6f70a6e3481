"""From the fused graph to a Plan: steps, arena, barriers, weights."""
