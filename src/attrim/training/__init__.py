"""The one training loop (on Accelerate), with checkpoints and resume. Nothing is imported here: commands read
:class:`~attrim.training.recipe.Recipe` before anything needs torch.
"""
