"""The house of the Triton kernels of chapters 16 and 17.

Importing this package needs neither a GPU nor Triton. It has no version
attribute: Hugging Face has a package of the same name, and transformers, when
it meets ours on the path, must see that it is not that one.
"""
