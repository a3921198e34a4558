"""The limits of http_proc that `serve` accepts: the names without "http_" are its flags."""

COUNTS = {
    "http_connections_max": "maximum number of HTTP connections at once (default 8192)",
    "http_header_bytes_max": "maximum bytes of a request's header (default 64 KiB)",
    "http_body_bytes_max": "maximum bytes of a request's body (default 32 MiB)",
    "http_held_bytes_max": "maximum bytes of all bodies and prompts together (default 512 MiB)",
}
TIMES = {
    "http_idle_timeout": "seconds between two requests of a connection (default 120)",
    "http_header_timeout": "seconds for a request's header to arrive (default 10)",
    "http_body_timeout": "seconds for a body to arrive, plus one per 16 KiB (default 20)",
    "http_write_timeout": "seconds that a client may stop reading its answer (default 30)",
}


def flags(options):
    """Returns the flags of the given limits; the process has defaults for the others."""
    units = {**dict.fromkeys(COUNTS, ""), **dict.fromkeys(TIMES, "-s")}
    given = {name: getattr(options, name) for name in units}
    return [
        f"--{name.removeprefix('http_').replace('_', '-')}{units[name]}={value}"
        for name, value in given.items()
        if value is not None
    ]
