"""The server of `vitmed serve`.

app         the addresses that it answers, and the thread that owns the model and answers several requests in one batch
limits      what every request passes: the key, the log line, errors as JSON; what it may cost, and its images
content     what the addresses return: typed data, pages, a Structured Report
scores      the numbers of /metrics, and the log of what the model said, for `vitmed monitor`
"""
