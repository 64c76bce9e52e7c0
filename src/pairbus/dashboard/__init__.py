"""The page: namespaces, entities and messages in a browser, with a JSON twin for every view.

`targets` reach a namespace, `watch` looks at them while somebody watches, `news` compares two looks, `guard` decides
who may ask, `api` answers, `server` is the port of `pairbus dashboard`. `on_broker` puts the page on the port of every
namespace of a broker. `static/` has the files for the browser, which ask nobody but the server that they came from.
"""
