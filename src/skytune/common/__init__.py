"""What every room needs and that knows no room."""
