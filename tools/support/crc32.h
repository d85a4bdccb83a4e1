/* CRC-32, the checksum of PNG, gzip and zip (ISO 3309, polynomial 0xedb88320). */
#ifndef SUPPORT_CRC32_H
#define SUPPORT_CRC32_H

#include <stddef.h>

/* Returns the checksum of bytes whose first part has the checksum `crc` (0: there is none), and
   whose last part is p[n]. */
static inline unsigned long crc32_of(unsigned long crc, const unsigned char *p, size_t n) {
    unsigned long step[256];
    for (unsigned i = 0; i < 256; i++) {
        step[i] = i;
        for (int k = 0; k < 8; k++) step[i] = step[i] >> 1 ^ (step[i] & 1 ? 0xedb88320UL : 0);
    }
    crc ^= 0xffffffffUL;
    for (size_t i = 0; i < n; i++) crc = step[(crc ^ p[i]) & 255] ^ crc >> 8;
    return crc ^ 0xffffffffUL;
}

#endif
