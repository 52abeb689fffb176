/* Simulated. The values that nvidia-smi can print, by the names it knows them under. */
#ifndef GPUSTATE_LAB_SMI_FIELDS_H
#define GPUSTATE_LAB_SMI_FIELDS_H

#include <dlfcn.h>
#include <stddef.h>

enum { BAD_ARGUMENT = 2, NOT_SUPPORTED = 3, NOTHING_FOUND = 6, NOT_LOADED = 9, NO_LIBRARY = 12, LOST = 15, MISMATCH = 18 };
#define MAX_FIELDS 64

/* Set once at start. */
extern void *library;
extern char driver_version[80];

/* Call an NVML function by name; one that the library lacks answers 13. */
#define CALL(name, ...)                                                                            \
    ({                                                                                             \
        int (*function_)() = (int (*)())dlsym(library, name);                                      \
        function_ ? function_(__VA_ARGS__) : 13;                                                   \
    })

const char *error_text(int code);
/* 1 when a field of that name exists; its unit is "" when it has none. */
int field_known(const char *name);
const char *field_unit(const char *name);
/* The value as nvidia-smi prints it; 15 ends the run, what a GPU cannot answer is [N/A]. */
int value(void *gpu, const char *name, char *into, size_t size, const char **unit);
/* The same with its unit behind it. */
const char *show(void *gpu, const char *name, char *into, size_t size);

#endif
