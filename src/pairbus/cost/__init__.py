"""Money: price sheets, and the estimate before a pair exists."""
