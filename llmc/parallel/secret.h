/*
The secret of ranks that were started without MPI, the key of HMAC-SHA256 (libcrypto): read from --secret-file with
-pi tcp, random with -pi fs.
defines: Secret, SECRET_TAG, SECRET_COMMAND, secret_read, secret_random, secret_tag, secret_equal,
         secret_check_library, secret_library
A build without libcrypto compiles these functions, but secret_check_library stops it before the first tag.
*/
#pragma once
#include "llmc/common/check.h"
#include <fcntl.h>
#include <stdbool.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef HAVE_LIBCRYPTO
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#endif

enum { SECRET_TAG = 32, SECRET_LEAST = 16, SECRET_MOST = 4096 };  // bytes

// makes a secret of 32 random bytes that nobody else can read
#define SECRET_COMMAND "(umask 077; head -c 32 /dev/urandom | base64 >secret)"

typedef struct {
    unsigned char bytes[SECRET_MOST + 1];  // a longer file fills the last byte
    size_t length;
} Secret;

// Stops in a build without libcrypto.
static inline void secret_check_library(void) {
#ifndef HAVE_LIBCRYPTO
    input_error("-pi fs and -pi tcp authenticate ranks with libcrypto, but this program was built without it: install "
                "libssl-dev and run make again, or start the ranks with mpirun");
#endif
}

// "OpenSSL 3.0.19"; NULL in a build without libcrypto
static inline const char *secret_library(void) {
#ifdef HAVE_LIBCRYPTO
    return OpenSSL_version(OPENSSL_VERSION);
#else
    return NULL;
#endif
}

// random bytes of the kernel
static inline void secret_random(void *data, size_t bytes) {
    for (size_t got = 0; got < bytes;) {
        ssize_t n = getrandom((char *)data + got, bytes - got, 0);
        if (n < 0 && errno != EINTR) { run_error("no random bytes: getrandom failed (%s)", strerror(errno)); }
        got += n > 0 ? (size_t)n : 0;
    }
}

// Stops unless the file is regular, belongs to this user and is closed to all others: ssh asks the same of a key.
static inline void secret_check_owner(int fd, const char *path) {
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        input_error("--secret-file %s is not a regular file; make one with: %s", path, SECRET_COMMAND);
    }
    if (info.st_uid != geteuid()) {
        input_error("--secret-file %s belongs to user %u, expected user %u, who runs this rank: make your own with: %s",
                    path, (unsigned)info.st_uid, (unsigned)geteuid(), SECRET_COMMAND);
    }
    if (info.st_mode & 077) {
        input_error("--secret-file %s has mode %04o, so other users may know the secret: make a new one with: %s", path,
                    (unsigned)(info.st_mode & 07777), SECRET_COMMAND);
    }
}

// Reads --secret-file without the newlines at its end. A file that others can read or that is too short is an input
// error.
static inline void secret_read(Secret *s, const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // without O_NONBLOCK the open of a pipe hangs
    if (fd < 0) {
        input_error("--secret-file %s cannot be read (%s); make one with: %s", path, strerror(errno), SECRET_COMMAND);
    }
    secret_check_owner(fd, path);
    s->length = 0;
    for (ssize_t n = 1; n > 0 && s->length < sizeof s->bytes; s->length += (size_t)n) {
        n = read(fd, s->bytes + s->length, sizeof s->bytes - s->length);
        if (n < 0) { input_error("--secret-file %s cannot be read (%s)", path, strerror(errno)); }
    }
    close(fd);
    bool too_long = s->length > SECRET_MOST;
    while (s->length > 0 && (s->bytes[s->length - 1] == '\n' || s->bytes[s->length - 1] == '\r')) { s->length--; }
    if (too_long || s->length < SECRET_LEAST) {
        input_error("--secret-file %s has %s%zu bytes, expected %d to %d; make one with: %s", path,
                    too_long ? "more than " : "", too_long ? (size_t)SECRET_MOST : s->length, SECRET_LEAST, SECRET_MOST,
                    SECRET_COMMAND);
    }
}

// tag (SECRET_TAG bytes) = HMAC-SHA256 of the data
static inline void secret_tag(unsigned char *tag, const Secret *s, const void *data, size_t bytes) {
#ifdef HAVE_LIBCRYPTO
    unsigned length = SECRET_TAG;
    if (HMAC(EVP_sha256(), s->bytes, (int)s->length, (const unsigned char *)data, bytes, tag, &length)) { return; }
#endif
    (void)tag, (void)s, (void)data, (void)bytes;
    run_error("libcrypto refused HMAC-SHA256; if its configuration demands longer secrets, give a longer one");
}

// whether two tags are equal, in a time that does not depend on their bytes
static inline bool secret_equal(const unsigned char *a, const unsigned char *b) {
#ifdef HAVE_LIBCRYPTO
    return CRYPTO_memcmp(a, b, SECRET_TAG) == 0;
#else
    (void)a;
    (void)b;
    return false;
#endif
}
