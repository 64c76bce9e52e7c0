"""The page: namespaces, entities and messages in a browser, with a JSON twin for every view.

`targets` reach a namespace, `watch` looks at them while a page is open, `news` compares two looks, `guard` decides
which requests are allowed, `api` answers, `server` is the port of `pairbus dashboard`. `on_broker` puts the page on the
port of every namespace of a broker. `static/` has the files for the browser; they send requests only to the server that
they came from.
"""
