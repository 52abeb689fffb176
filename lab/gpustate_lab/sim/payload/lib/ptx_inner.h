/* Simulated. What reading and running PTX share: a kernel as a list of instructions. */
#ifndef GPUSTATE_LAB_PTX_INNER_H
#define GPUSTATE_LAB_PTX_INNER_H

#include "ptx.h"

enum { INVALID_IMAGE = 200, NO_BINARY_FOR_GPU = 209, INVALID_PTX = 218, UNSUPPORTED_PTX_VERSION = 222,
       ILLEGAL_ADDRESS = 700, LAUNCH_TIMEOUT = 702 };

#define MAX_NAME 64
#define MAX_REGISTERS 512
#define MAX_PARAMETERS 32
#define MAX_LABELS 128
#define MAX_INSTRUCTIONS 4096

enum op { LD_PARAM, LD_GLOBAL, ST_GLOBAL, MOV, CVTA, CVT, ADD, SUB, MUL, MAD, DIV, REM, MIN, MAX, AND, OR, XOR,
          NOT, NEG, SHL, SHR, SETP, SELP, BRA, RET };

enum kind { SIGNED, UNSIGNED, FLOAT, PREDICATE };
struct type { enum kind kind; unsigned size; };
enum compare { EQ, NE, LT, LE, GT, GE };
enum part { WHOLE, LOW, HIGH, WIDE };

enum operand_kind { REGISTER, IMMEDIATE, SPECIAL, PARAMETER, LABEL };
struct operand { enum operand_kind kind; unsigned number; uint64_t value; };
struct instruction {
    enum op op; enum part part; enum compare compare; struct type type, from;
    int guard, guard_is_not; /* guard: register number, or -1 */
    struct operand operands[4];
};
struct named { char name[MAX_NAME]; unsigned value; struct type type; };
struct ptx_kernel {
    char name[MAX_NAME];
    struct named registers[MAX_REGISTERS], parameters[MAX_PARAMETERS], labels[MAX_LABELS];
    unsigned register_count, parameter_count, label_count, instruction_count;
    struct instruction instructions[MAX_INSTRUCTIONS];
    struct ptx_kernel *next;
};
struct ptx_module { struct ptx_kernel *kernels; };

#endif
