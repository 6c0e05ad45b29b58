"""Probes: small heads on all hidden states of a frozen model (PAPA, https://arxiv.org/abs/2211.03495)."""
