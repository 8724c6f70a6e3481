/* Calls a function of a code image on a copy of the caller's memory. Usage: runner IMAGE JOB

   JOB begins with eight u64: offset of the function in IMAGE, number of relocations, number of calls, bytes of
   memory, then zeros. After that come the relocations (offset in memory, offset it shall point to), the calls (five
   u64 arguments each, inside the memory block, at its start), and the memory. The image is mapped from its file, read
   and execute only; the memory is written back to JOB after the calls. */

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef void (*function)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

static int fail(const char *what) { perror(what); return 1; }

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "usage: runner IMAGE JOB\n"), 2;
    int image = open(argv[1], O_RDONLY), job = open(argv[2], O_RDWR);
    struct stat st, jst;
    if (image < 0 || job < 0 || fstat(image, &st) || fstat(job, &jst)) return fail("open");
    uint8_t *code = mmap(NULL, st.st_size, PROT_READ | PROT_EXEC, MAP_PRIVATE, image, 0);
    uint8_t *all = mmap(NULL, jst.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, job, 0);
    if (code == MAP_FAILED || all == MAP_FAILED) return fail("mmap");
    const uint64_t *head = (const uint64_t *)all;
    uint64_t relocations = head[1], calls = head[2];
    const uint64_t *reloc = head + 8;
    uint8_t *memory = all + ((64 + 16 * relocations + 63) & ~(uint64_t)63);
    if (memory + head[3] != all + jst.st_size) return fprintf(stderr, "job has a wrong size\n"), 1;
    for (uint64_t i = 0; i < relocations; i++)
        *(uint64_t *)(memory + reloc[2 * i]) = (uint64_t)(memory + reloc[2 * i + 1]);
    for (uint64_t i = 0; i < calls; i++) {
        const uint64_t *a = (const uint64_t *)memory + 5 * i;
        ((function)(code + head[0]))(a[0], a[1], a[2], a[3], a[4]);
    }
    return 0;
}
