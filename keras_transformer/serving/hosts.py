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
    name = re.sub(r":\d*$", "", header).strip("[]").rstrip(".").lower()
    if not name or name in {"localhost", *map(str.lower, allowed)}:
        return
    try:
        ipaddress.ip_address(name)
    except ValueError:
        raise RequestError(
            403,
            "Host is not allowed. To allow it, start the server with --allow-host",
            "host",
        ) from None
