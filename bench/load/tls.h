/* TLS of one connection, over a non-blocking socket whose handshake is done. Certificates are not checked: the
 * load measures a broker that it was told of. Without OpenSSL's headers there is none of it, and asking fails. */
#ifndef LOAD_TLS_H
#define LOAD_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct tls;

/* The handshake, while the socket still blocks. Fails with a reason. */
struct tls *tls_open(int socket, const char *address);
void tls_close(struct tls *tls);

/* As recv and send: -1 with EAGAIN when the socket has nothing, or is full; then tls_write is to be called again
 * with the same bytes, or more behind them. */
ssize_t tls_read(struct tls *tls, uint8_t *to, size_t bytes);
ssize_t tls_write(struct tls *tls, const uint8_t *from, size_t bytes);

/* Whether bytes lie in memory that no event of the socket tells of. */
bool tls_pending(const struct tls *tls);

#endif
