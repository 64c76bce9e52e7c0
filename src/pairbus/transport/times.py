"""Times of the transport: every limit and pause in seconds, and the reason for its value."""

# ── defaults of callers ──
CONNECT_TIMEOUT_S = 10.0  # of `connect`: name, socket, TLS, SASL and open together
SILENCE_S = 3.0  # longest silence of the peer in each step of an opening
TIMEOUT_S = 30.0  # of a call, and of a link
IDLE_TIME_OUT_S = 30.0  # a peer that is silent for one and a half of these counts as dead

# ── openings ──
OPENING_TIMEOUT_S = 60.0  # limit of an opening, which goes on for other and later callers when its caller has left
FAR_S = 3600.0  # deadline of a wait that its clock of silence limits
NEXT_WAIT_S = 5.0  # for a session, which the peer waits for before it refuses the link
CREDENTIAL_TIMEOUT_S = 60.0  # for a credential, which may ask a person or another host
RENEW_RETRY_S = 15.0  # after a failed renewal; a tenth of an hour leaves room for many
FRESH_S = 2.0  # age up to which a connection is fresh: callers whose sends fail together share one

# ── silence ──
AGAIN_S = 0.05  # for the event loop to read the bytes that arrived, after a timer that fired late
STEP_LATE_S = 0.05  # a timer of a loop that has other work to do fires this much later
LOOK_LATE_S = 0.1  # a timer of a link that fires so late shows that this process did not run
LINK_SILENCE_S = 3.0  # after less, a send that its caller gave up does not show that the peer has lost the link
ALLOWANCE_S = 1.0  # for the content of a small send buffer, where the system does not tell

# ── endings ──
CLOSE_TIMEOUT_S = 2.0  # for the peer's answer to a close
WEBSOCKET_CLOSE_S = 1.0  # for the peer's answer to the close of a web socket
LOOK_S = 0.5  # between two looks at links that were left
BEGIN_AGAIN_S = 5.0  # pause before work that was ended by a bug begins again
