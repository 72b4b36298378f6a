/*
Addresses and TCP sockets of the rendezvous.
defines: LLMC_PORT, address_parse, address_resolve, address_name, socket_ready, socket_receive, socket_send,
         socket_listen_at, socket_listen_any_port, socket_connect, socket_no_delay
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/device.h"
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECT_SECONDS 3.0  // per address, so that an address without an answer does not delay the next one

#define LLMC_PORT 12345  // the port if -ps gives none, as in llm.c

// Parses "HOST:PORT", "[HOST]:PORT", "HOST" or "[HOST]": fills host[256] and returns the port. An IPv6 address needs
// brackets.
static inline int address_parse(char *host, const char *server) {
    if (server[0] != '[' && strchr(server, ':') != strrchr(server, ':')) {
        input_error(
            "found '%s' as the address of rank 0, expected HOST:PORT; an IPv6 address takes brackets: [fe80::2] "
            "or [fe80::2]:%d",
            server, LLMC_PORT);
    }
    const char *bracket = strrchr(server, ']'), *colon = strrchr(bracket ? bracket : server, ':');
    char *end = NULL;
    long port = colon ? strtol(colon + 1, &end, 10) : LLMC_PORT;
    size_t length = colon ? (size_t)(colon - server) : strlen(server);
    if (port < 1 || port > 65535 || (end && *end) || length == 0 || length >= 256) {
        input_error("found '%s' as the address of rank 0, expected HOST:PORT, or HOST for port %d", server, LLMC_PORT);
    }
    bool bracketed = server[0] == '[' && server[length - 1] == ']';
    snprintf(host, 256, "%.*s", (int)(bracketed ? length - 2 : length), server + bracketed);
    return (int)port;
}

// all addresses of "HOST:PORT" or "HOST"; the caller frees them with freeaddrinfo
static inline struct addrinfo *address_resolve(const char *server) {
    char host[256], service[16];
    snprintf(service, sizeof service, "%d", address_parse(host, server));
    struct addrinfo hints, *found = NULL;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_family = AF_UNSPEC;
    int error = getaddrinfo(host, service, &hints, &found);
    if (error != 0) { input_error("the address of rank 0, %s, cannot be resolved: %s", server, gai_strerror(error)); }
    return found;
}

// Waits until the socket is readable or writable; false after the timeout. A signal ends poll but not this wait.
static inline bool socket_ready(int socket, short events, int milliseconds) {
    struct pollfd ready = {socket, events, 0};
    double end = now_seconds() + 1e-3 * milliseconds;
    int count;
    while ((count = poll(&ready, 1, milliseconds)) < 0 && errno == EINTR) {
        double left = end - now_seconds();
        milliseconds = left > 0 ? (int)(left * 1e3) + 1 : 0;
    }
    return count > 0;
}

// receives all bytes; false if the other end closes the connection, or at the deadline
static inline bool socket_receive(int socket, void *data, size_t bytes, double deadline) {
    for (size_t got = 0; got < bytes;) {
        double left = deadline - now_seconds();
        if (!socket_ready(socket, POLLIN, left > 0 ? (int)(left * 1e3) + 1 : 0)) { return false; }
        ssize_t n = recv(socket, (char *)data + got, bytes - got, 0);
        if (n == 0 || (n < 0 && errno != EINTR)) { return false; }
        got += n > 0 ? (size_t)n : 0;
    }
    return true;
}

// Sends a few bytes, which must fit the socket's buffer; false on failure.
static inline bool socket_send(int socket, const void *data, size_t bytes) {
    return send(socket, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

// Makes the address of one family that stands for all addresses.
static inline struct addrinfo address_any(int family, struct sockaddr_storage *any) {
    struct addrinfo address;
    memset(&address, 0, sizeof address);
    memset(any, 0, sizeof *any);
    any->ss_family = (sa_family_t)family;
    address.ai_family = family;
    address.ai_addr = (struct sockaddr *)any;
    address.ai_addrlen = family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    return address;
}

// Listens on one address, and on no other. dual: the address is IPv6's any, and IPv4 is accepted too. The socket does
// not block. -1 on failure.
static inline int socket_listen_at(const struct addrinfo *address, bool dual) {
    int one = 1, six_only = !dual;
    int listener = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0) { return -1; }
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (address->ai_family == AF_INET6) { setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &six_only, sizeof six_only); }
    if (bind(listener, address->ai_addr, address->ai_addrlen) == 0 && listen(listener, SOMAXCONN) == 0) {
        return listener;
    }
    int error = errno;
    close(listener);
    errno = error;
    return -1;
}

// Listens on all addresses, at a free port, and stores its number.
static inline int socket_listen_any_port(int *port) {
    struct sockaddr_storage any;
    struct addrinfo six = address_any(AF_INET6, &any);
    int listener = socket_listen_at(&six, true);
    if (listener < 0) {
        struct addrinfo four = address_any(AF_INET, &any);
        listener = socket_listen_at(&four, false);
    }
    if (listener < 0) { run_error("rank 0 cannot listen on any port (%s)", strerror(errno)); }
    struct sockaddr_in6 own;  // sin6_port is at the offset of sin_port
    socklen_t length = sizeof own;
    getsockname(listener, (struct sockaddr *)&own, &length);
    *port = ntohs(own.sin6_port);
    return listener;
}

// text = "10.0.0.2:4711" or "[fe80::2]:4711"
static inline void address_name(char *text, size_t room, const struct sockaddr *address, socklen_t length) {
    char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";
    getnameinfo(address, length, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(text, room, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
}

// Connects to an address; -1 if no process listens there, or none answers before the deadline.
static inline int socket_connect(const struct addrinfo *address, double deadline) {
    int peer = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error = 0;
    if (peer < 0) { return -1; }
    socklen_t length = sizeof error;
    double left = deadline - now_seconds();
    if (left > CONNECT_SECONDS) { left = CONNECT_SECONDS; }
    bool connected = connect(peer, address->ai_addr, address->ai_addrlen) == 0;
    if (!connected && errno == EINPROGRESS && socket_ready(peer, POLLOUT, left > 0 ? (int)(left * 1e3) + 1 : 0)) {
        connected = getsockopt(peer, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
    }
    if (connected && fcntl(peer, F_SETFL, 0) == 0) { return peer; }
    close(peer);
    return -1;
}

// Sends each message at once: messages are short, and each is waited for.
static inline void socket_no_delay(int peer) {
    int one = 1;
    setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}
