/* See tls.h. OpenSSL reads ahead, as much as a receive buffer of the kernel holds: a record of 16 KiB would else take
 * two system calls and a wait of its own. */
#include "tls.h"

#include "fail.h"

#ifdef LOAD_WITH_TLS

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

enum { READ_AHEAD_BYTES = 256 << 10 };

static SSL_CTX *context(void)
{
    static SSL_CTX *made;
    if (made == NULL) {
        made = SSL_CTX_new(TLS_client_method());
        if (made == NULL)
            fail("OpenSSL makes no context");
        SSL_CTX_set_verify(made, SSL_VERIFY_NONE, NULL);
        SSL_CTX_set_mode(made, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
        SSL_CTX_set_read_ahead(made, 1);
        SSL_CTX_set_default_read_buffer_len(made, READ_AHEAD_BYTES);
    }
    return made;
}

struct tls *tls_open(int socket, const char *address)
{
    SSL *ssl = SSL_new(context());
    if (ssl == NULL || SSL_set_fd(ssl, socket) != 1 || SSL_connect(ssl) != 1)
        fail("no TLS with %s: %s", address, ERR_reason_error_string(ERR_peek_last_error()));
    return (struct tls *)ssl;
}

void tls_close(struct tls *tls)
{
    SSL_free((SSL *)tls);
}

/* What a call that did not move a byte means, as errno of a socket. */
static ssize_t failed(SSL *ssl, int result)
{
    switch (SSL_get_error(ssl, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        errno = EAGAIN;
        return -1;
    case SSL_ERROR_ZERO_RETURN:
        return 0;
    case SSL_ERROR_SYSCALL:
        if (errno != 0)
            return -1;
        return 0;
    default:
        errno = EPROTO;
        return -1;
    }
}

ssize_t tls_read(struct tls *tls, uint8_t *to, size_t bytes)
{
    size_t moved;
    ERR_clear_error();
    int result = SSL_read_ex((SSL *)tls, to, bytes, &moved);
    return result == 1 ? (ssize_t)moved : failed((SSL *)tls, result);
}

ssize_t tls_write(struct tls *tls, const uint8_t *from, size_t bytes)
{
    size_t moved;
    ERR_clear_error();
    int result = SSL_write_ex((SSL *)tls, from, bytes, &moved);
    return result == 1 ? (ssize_t)moved : failed((SSL *)tls, result);
}

bool tls_pending(const struct tls *tls)
{
    return SSL_has_pending((const SSL *)tls) == 1;
}

#else

struct tls *tls_open(int socket, const char *address)
{
    (void)socket;
    fail("%s: this load generator was built without OpenSSL (Debian: apt-get install libssl-dev)", address);
}

void tls_close(struct tls *tls)
{
    (void)tls;
}

ssize_t tls_read(struct tls *tls, uint8_t *to, size_t bytes)
{
    (void)tls, (void)to, (void)bytes;
    return -1;
}

ssize_t tls_write(struct tls *tls, const uint8_t *from, size_t bytes)
{
    (void)tls, (void)from, (void)bytes;
    return -1;
}

bool tls_pending(const struct tls *tls)
{
    (void)tls;
    return false;
}

#endif
