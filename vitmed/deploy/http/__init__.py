"""The server of `vitmed serve`.

app         the addresses that it answers
guard       what every request passes: the key, the log line, errors as JSON
limits      what a request may cost, and its images, read into memory
batching    one thread that owns the model and answers several requests in one batch
content     what the addresses return: typed data and pages
counters    the numbers of /metrics
scores      the log of what the model said, for `vitmed monitor`
reports     the answer as a Structured Report
maps        the attention map of an image
listening   socket, certificate, signals
"""
