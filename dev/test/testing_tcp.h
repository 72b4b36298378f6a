/* For tests of rendezvous by TCP. */
#pragma once
#include "dev/test/testing.h"
#include "llmc/parallel/secret.h"
#include <arpa/inet.h>

// HOST:PORT on this machine's loopback, with a port that was free a moment ago
static inline const char *free_address(void) {
    static char address[32];
    struct sockaddr_in any;
    socklen_t length = sizeof any;
    memset(&any, 0, sizeof any);
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_ANY);
    int probe = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(probe, (struct sockaddr *)&any, sizeof any), 0);
    assert_int_equal(getsockname(probe, (struct sockaddr *)&any, &length), 0);
    close(probe);
    snprintf(address, sizeof address, "127.0.0.1:%d", ntohs(any.sin_port));
    return address;
}

// ranks prove by HMAC that they know the secret
static inline void needs_libcrypto(void) {
    if (!secret_library()) { skip(); }
}
