"""The way to one namespace: a carrier, its pool of connections and its sending links."""
