"""The quantising methods: every function here makes a codebook and is registered by one decorator."""
