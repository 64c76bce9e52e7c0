"""AMQP 1.0 without I/O, for both ends: bytes in → events out; calls in → bytes out.

    connection = Connection(settings, SaslServer(check))                # the end of a server; time is an argument
    for event in connection.receive_data(data, now): …                  # no exception leaves it: bad bytes are an event
    transport.write(connection.data_to_send())

`connection` has sessions (`session`), and these have links (`link`), which `lifecycle` opens and closes by one table.
Below them `frames`, `performatives` and `transfers` are the standard's frames; `types`, `encoding` and `values` its
types; `message` the sections of a message.
"""
