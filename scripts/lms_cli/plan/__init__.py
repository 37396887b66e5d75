"""`lms plan`: what a script would need and take on cards that nobody has at hand."""
