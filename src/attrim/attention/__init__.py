"""Find and reach the attention of a model: discovery, the two routes, masks, the table of architectures, contexts."""
