"""The small model that ships with the book, and what made it."""
