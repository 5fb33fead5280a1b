"""Checks of the `Host` header that prevent DNS rebinding.

In this attack, the domain name of a web page is made to resolve to this server's
address, so that scripts of the page may read responses of the server.
"""

import ipaddress
import re

from keras_transformer.serving.errors import RequestError


def check_host(header, allowed):
    """Raises `RequestError` unless a request addresses this server.

    Only DNS names can be rebound to another address, so IP addresses are accepted.

    Args:
        header: The `Host` header. An empty header is accepted, because the attack needs
            a browser, and browsers always send the header.
        allowed: Host names that are accepted in addition to `localhost`.
    """
    name = _name_of(header)
    if not name or name in {"localhost", *map(_name_of, allowed)}:
        return
    try:
        ipaddress.ip_address(name)
    except ValueError:
        raise RequestError(
            403,
            "Host is not allowed. To allow it, start the server with --allow-host",
            "host",
        ) from None


def is_host_name(text):
    """Returns whether `text` is a host name or an IP address. It may have a port."""
    return re.fullmatch(r"[\w.-]+|[0-9a-f:.]+", _name_of(text)) is not None


def _name_of(header):
    """Returns the name in a `Host` header in lower case, without port and final dot."""
    return re.sub(r":\d*$", "", header).strip("[]").rstrip(".").lower()
