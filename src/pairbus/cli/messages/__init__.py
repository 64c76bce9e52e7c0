"""`pairbus message`: look at messages, send, receive, export, import, move and delete them."""
