/* Simulated: runs the kernels that ptx_read.c has read.
 *
 * One instruction runs over all lanes (threads) of a block before the next one starts: the loops
 * below are what the compiler turns into vector code. Where a branch splits the lanes, each lane
 * goes on alone, as a block of one. Registers of one number lie beside one another.
 *
 * Sources: PTX ISA 8.7, chapter 9.7.
 */
#define _GNU_SOURCE
#include "ptx_inner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_STEPS 2000000000ULL /* a kernel without end must not hang a test */
#define MAX_LANES 1024
typedef uint64_t column[MAX_LANES];

struct block {
    unsigned lanes;
    column *registers;
    column special[12];
};

#define EACH(expression)                                                                           \
    for (unsigned i = 0; i < lanes; i++)                                                           \
        to[i] = (uint64_t)(expression)

/* A value as its type sees it: cut to size, the sign kept for signed ones. */
static void fit(uint64_t *to, const uint64_t *from, unsigned lanes, struct type type) {
    unsigned shift = type.kind == PREDICATE ? 63 : 64 - 8 * type.size;
    if (shift == 32 && type.kind != SIGNED)
        EACH((uint32_t)from[i]);
    else if (shift == 32)
        EACH((int64_t)(int32_t)from[i]);
    else if (type.kind == SIGNED)
        EACH((int64_t)(from[i] << shift) >> shift);
    else
        EACH(from[i] << shift >> shift);
}

static float single_of(uint64_t bits) {
    float value;
    uint32_t low = (uint32_t)bits;
    memcpy(&value, &low, sizeof value);
    return value;
}

static double double_of(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint64_t bits_of_single(float value) {
    uint32_t low;
    memcpy(&low, &value, sizeof low);
    return low;
}

static uint64_t bits_of_double(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* To an integer as cvt does it: what does not fit becomes the nearest end, NaN becomes zero. */
static uint64_t integer_of(double value, struct type type) {
    double top = ldexp(1.0, (int)(8 * type.size) - (type.kind == SIGNED)), low = type.kind == SIGNED ? -top : 0;
    uint64_t ones = type.size == 8 ? ~0ULL : (1ULL << 8 * type.size) - 1;
    if (isnan(value))
        return 0;
    if (value >= top)
        return type.kind == SIGNED ? ones >> 1 : ones;
    if (value <= low)
        return type.kind == SIGNED ? ~(ones >> 1) : 0;
    return type.kind == SIGNED ? (uint64_t)(int64_t)value : (uint64_t)value;
}

static void convert(const struct instruction *at, uint64_t *to, const uint64_t *a, unsigned lanes) {
    struct type from = at->from, into = at->type;
    if (from.kind == FLOAT && into.kind == FLOAT) {
        if (from.size == into.size)
            EACH(a[i]);
        else if (into.size == 4)
            EACH(bits_of_single((float)double_of(a[i])));
        else
            EACH(bits_of_double(single_of(a[i])));
    } else if (from.kind == FLOAT) {
        if (from.size == 4)
            EACH(integer_of(single_of(a[i]), into));
        else
            EACH(integer_of(double_of(a[i]), into));
        fit(to, to, lanes, into);
    } else {
        fit(to, a, lanes, from);
        if (into.kind != FLOAT)
            fit(to, to, lanes, into);
        else if (into.size == 4 && from.kind == SIGNED)
            EACH(bits_of_single((float)(int64_t)to[i]));
        else if (into.size == 4)
            EACH(bits_of_single((float)to[i]));
        else if (from.kind == SIGNED)
            EACH(bits_of_double((double)(int64_t)to[i]));
        else
            EACH(bits_of_double((double)to[i]));
    }
}

#define X single_of(a[i])
#define Y single_of(b[i])
#define Z single_of(c[i])
static void with_singles(enum op op, uint64_t *to, const uint64_t *a, const uint64_t *b, const uint64_t *c, unsigned lanes) {
    switch (op) {
    case ADD: EACH(bits_of_single(X + Y)); break;
    case SUB: EACH(bits_of_single(X - Y)); break;
    case MUL: EACH(bits_of_single(X * Y)); break;
    case MAD: EACH(bits_of_single(fmaf(X, Y, Z))); break;
    case DIV: EACH(bits_of_single(X / Y)); break;
    case MIN: EACH(bits_of_single(fminf(X, Y))); break;
    case MAX: EACH(bits_of_single(fmaxf(X, Y))); break;
    default: EACH(bits_of_single(-X)); break;
    }
}
#undef X
#undef Y
#undef Z

#define X double_of(a[i])
#define Y double_of(b[i])
#define Z double_of(c[i])
static void with_doubles(enum op op, uint64_t *to, const uint64_t *a, const uint64_t *b, const uint64_t *c, unsigned lanes) {
    switch (op) {
    case ADD: EACH(bits_of_double(X + Y)); break;
    case SUB: EACH(bits_of_double(X - Y)); break;
    case MUL: EACH(bits_of_double(X * Y)); break;
    case MAD: EACH(bits_of_double(fma(X, Y, Z))); break;
    case DIV: EACH(bits_of_double(X / Y)); break;
    case MIN: EACH(bits_of_double(fmin(X, Y))); break;
    case MAX: EACH(bits_of_double(fmax(X, Y))); break;
    default: EACH(bits_of_double(-X)); break;
    }
}
#undef X
#undef Y
#undef Z

/* The upper half of a product, or with `wide` sizes of 32 bits and less the whole of it. */
static uint64_t high_half(uint64_t a, uint64_t b, struct type type) {
    __int128 full = type.kind == SIGNED ? (__int128)(int64_t)a * (int64_t)b : (__int128)((unsigned __int128)a * b);
    return (uint64_t)(full >> (8 * type.size));
}

/* Division by zero has no defined result in PTX; all ones, and the dividend, are what GPUs give. */
static uint64_t quotient(uint64_t a, uint64_t b, int is_signed) {
    if (!b)
        return ~0ULL;
    if (!is_signed)
        return a / b;
    return (int64_t)b == -1 ? 0 - a : (uint64_t)((int64_t)a / (int64_t)b);
}

static uint64_t remainder_of(uint64_t a, uint64_t b, int is_signed) {
    if (!b)
        return a;
    if (!is_signed)
        return a % b;
    return (int64_t)b == -1 ? 0 : (uint64_t)((int64_t)a % (int64_t)b);
}

/* Shifts further than the width give zero, or the sign. */
static void shift(const struct instruction *at, uint64_t *to, const uint64_t *a, const uint64_t *b, unsigned lanes) {
    unsigned bits = 8 * at->type.size;
    if (at->op == SHL)
        EACH((uint32_t)b[i] >= bits ? 0 : a[i] << (uint32_t)b[i]);
    else if (at->type.kind == SIGNED)
        EACH((int64_t)a[i] >> ((uint32_t)b[i] >= bits ? bits - 1 : (uint32_t)b[i]));
    else
        EACH((uint32_t)b[i] >= bits ? 0 : a[i] >> (uint32_t)b[i]);
}

static void with_integers(const struct instruction *at, uint64_t *to, const uint64_t *a, const uint64_t *b, const uint64_t *c, unsigned lanes) {
    int is_signed = at->type.kind == SIGNED;
    struct type result = at->type;
    if (at->part == WIDE)
        result.size *= 2;
    switch (at->op) {
    case ADD: EACH(a[i] + b[i]); break;
    case SUB: EACH(a[i] - b[i]); break;
    case MUL:
        if (at->part == HIGH)
            EACH(high_half(a[i], b[i], at->type));
        else
            EACH(a[i] * b[i]);
        break;
    case MAD:
        if (at->part == HIGH)
            EACH(high_half(a[i], b[i], at->type) + c[i]);
        else
            EACH(a[i] * b[i] + c[i]);
        break;
    case DIV: EACH(quotient(a[i], b[i], is_signed)); break;
    case REM: EACH(remainder_of(a[i], b[i], is_signed)); break;
    case MIN: EACH((is_signed ? (int64_t)a[i] < (int64_t)b[i] : a[i] < b[i]) ? a[i] : b[i]); break;
    case MAX: EACH((is_signed ? (int64_t)a[i] > (int64_t)b[i] : a[i] > b[i]) ? a[i] : b[i]); break;
    case AND: EACH(a[i] & b[i]); break;
    case OR: EACH(a[i] | b[i]); break;
    case XOR: EACH(a[i] ^ b[i]); break;
    case NOT: EACH(~a[i]); break;
    case NEG: EACH(0 - a[i]); break;
    default: shift(at, to, a, b, lanes); break;
    }
    fit(to, to, lanes, result);
}

/* Ordered comparisons: with a NaN all are false, ne included. */
static int compare_one(const struct instruction *at, uint64_t a, uint64_t b) {
    int less, same;
    if (at->type.kind == FLOAT) {
        double x = at->type.size == 4 ? single_of(a) : double_of(a), y = at->type.size == 4 ? single_of(b) : double_of(b);
        if (isnan(x) || isnan(y))
            return 0;
        less = x < y;
        same = x == y;
    } else {
        less = at->type.kind == SIGNED ? (int64_t)a < (int64_t)b : a < b;
        same = a == b;
    }
    switch (at->compare) {
    case EQ: return same;
    case NE: return !same;
    case LT: return less;
    case LE: return less || same;
    case GT: return !less && !same;
    default: return !less;
    }
}

/* The lanes of an operand; what is the same in all of them is written into `space`. */
static const uint64_t *lanes_of(struct block *block, const struct operand *operand, uint64_t *space) {
    if (operand->kind == REGISTER)
        return block->registers[operand->number];
    if (operand->kind == SPECIAL)
        return block->special[operand->number];
    for (unsigned i = 0; i < block->lanes; i++)
        space[i] = operand->value;
    return space;
}

static void compute(struct block *block, const struct instruction *at, const struct ptx_launch *launch, uint64_t *to) {
    static __thread column space[3], fitted[3];
    const uint64_t *raw[3], *in[3];
    unsigned lanes = block->lanes;
    if (at->op == LD_PARAM) {
        uint64_t value = 0;
        memcpy(&value, launch->parameters[at->operands[1].number], at->type.size);
        EACH(value);
        fit(to, to, lanes, at->type);
        return;
    }
    for (int i = 0; i < 3; i++) {
        raw[i] = in[i] = lanes_of(block, &at->operands[i + 1], space[i]);
        int counts = at->op == MOV || at->op == CVT || at->op == CVTA ? 1 : 3;
        if (at->type.kind != FLOAT && at->type.size != 8 && i < counts && at->op != CVT) {
            fit(fitted[i], raw[i], lanes, at->type);
            in[i] = fitted[i];
        }
    }
    switch (at->op) {
    case MOV: case CVTA: EACH(in[0][i]); break;
    case CVT: convert(at, to, raw[0], lanes); break;
    case SETP: EACH(compare_one(at, in[0][i], in[1][i])); break;
    case SELP: EACH(raw[2][i] & 1 ? in[0][i] : in[1][i]); break;
    case SHL: case SHR: with_integers(at, to, in[0], raw[1], raw[2], lanes); break;
    default:
        if (at->type.kind != FLOAT)
            /* mad.wide adds a third operand of twice the size, which must not be cut. */
            with_integers(at, to, in[0], in[1], at->part == WIDE ? raw[2] : in[2], lanes);
        else if (at->type.size == 4)
            with_singles(at->op, to, in[0], in[1], in[2], lanes);
        else
            with_doubles(at->op, to, in[0], in[1], in[2], lanes);
    }
}

/* ld.global and st.global for the lanes that `active` names (all when NULL). */
static int touch_memory(struct block *block, const struct instruction *at, const struct ptx_launch *launch, const uint64_t *active) {
    static __thread column space;
    int storing = at->op == ST_GLOBAL;
    const struct operand *place = &at->operands[storing ? 0 : 1];
    const uint64_t *base = block->registers[place->number];
    const uint64_t *from = storing ? lanes_of(block, &at->operands[1], space) : NULL;
    uint64_t *to = storing ? NULL : block->registers[at->operands[0].number];
    uint64_t low = ~0ULL, high = 0;
    unsigned size = at->type.size;
    for (unsigned i = 0; i < block->lanes; i++) {
        low = base[i] < low ? base[i] : low;
        high = base[i] > high ? base[i] : high;
    }
    int all_inside = launch->allowed(low + place->value, high - low + size);
    for (unsigned i = 0; i < block->lanes; i++) {
        uint64_t address = base[i] + place->value, value = 0;
        if (active && !active[i])
            continue;
        if (!all_inside && !launch->allowed(address, size))
            return ILLEGAL_ADDRESS;
        if (storing)
            memcpy((void *)(uintptr_t)address, &from[i], size);
        else {
            memcpy(&value, (const void *)(uintptr_t)address, size);
            to[i] = value;
        }
    }
    if (!storing && at->type.kind == SIGNED)
        fit(to, to, block->lanes, at->type);
    return 0;
}

/* Run what is not a branch in the lanes whose guard holds. */
static int step(struct block *block, const struct instruction *at, const struct ptx_launch *launch) {
    static __thread column active, result;
    unsigned lanes = block->lanes;
    int touches = at->op == LD_GLOBAL || at->op == ST_GLOBAL;
    if (at->guard < 0) {
        if (touches)
            return touch_memory(block, at, launch, NULL);
        uint64_t *to = block->registers[at->operands[0].number];
        compute(block, at, launch, result); /* the target may be one of the operands */
        memcpy(to, result, sizeof(uint64_t) * lanes);
        return 0;
    }
    for (unsigned i = 0; i < lanes; i++)
        active[i] = (block->registers[at->guard][i] & 1) != (uint64_t)at->guard_is_not;
    if (touches)
        return touch_memory(block, at, launch, active);
    compute(block, at, launch, result);
    uint64_t *to = block->registers[at->operands[0].number];
    for (unsigned i = 0; i < lanes; i++)
        to[i] = active[i] ? result[i] : to[i];
    return 0;
}

static int run_block(const struct ptx_kernel *kernel, struct block *block, unsigned at, const struct ptx_launch *launch, uint64_t *steps);

/* The lanes part: each goes on alone from its own instruction. */
static int run_apart(const struct ptx_kernel *kernel, struct block *block, const struct instruction *branch, unsigned next,
                     const struct ptx_launch *launch, uint64_t *steps) {
    struct block *one = malloc(sizeof *one);
    column *registers = malloc(sizeof(column) * (kernel->register_count + 1));
    int wrong = one && registers ? 0 : 2;
    for (unsigned lane = 0; lane < block->lanes && !wrong; lane++) {
        one->lanes = 1;
        one->registers = registers;
        for (unsigned r = 0; r < kernel->register_count; r++)
            registers[r][0] = block->registers[r][lane];
        for (unsigned s = 0; s < 12; s++)
            one->special[s][0] = block->special[s][lane];
        int taken = (registers[branch->guard][0] & 1) != (uint64_t)branch->guard_is_not;
        if (branch->op == RET && taken)
            continue;
        wrong = run_block(kernel, one, taken ? branch->operands[0].number : next, launch, steps);
    }
    free(registers);
    free(one);
    return wrong;
}

static int run_block(const struct ptx_kernel *kernel, struct block *block, unsigned at, const struct ptx_launch *launch, uint64_t *steps) {
    while (at < kernel->instruction_count) {
        const struct instruction *now = &kernel->instructions[at++];
        if ((*steps += block->lanes) > MAX_STEPS)
            return LAUNCH_TIMEOUT;
        if (now->op != BRA && now->op != RET) {
            int wrong = step(block, now, launch);
            if (wrong)
                return wrong;
            continue;
        }
        unsigned taken = now->guard < 0 ? block->lanes : 0;
        for (unsigned i = 0; now->guard >= 0 && i < block->lanes; i++)
            taken += (block->registers[now->guard][i] & 1) != (uint64_t)now->guard_is_not;
        if (taken && taken < block->lanes)
            return run_apart(kernel, block, now, at, launch, steps);
        if (taken && now->op == RET)
            return 0;
        if (taken)
            at = now->operands[0].number;
    }
    return 0;
}

int ptx_run(const struct ptx_kernel *kernel, const struct ptx_launch *launch) {
    const unsigned *grid = launch->grid, *threads = launch->block;
    uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2], steps = 0;
    unsigned lanes = threads[0] * threads[1] * threads[2];
    struct block *block = malloc(sizeof *block);
    column *registers = calloc(kernel->register_count + 1, sizeof(column));
    int wrong = block && registers && lanes <= MAX_LANES ? 0 : 2;
    for (uint64_t b = 0; b < blocks && !wrong; b++) {
        uint64_t at[3] = {b % grid[0], b / grid[0] % grid[1], b / grid[0] / grid[1]};
        block->lanes = lanes;
        block->registers = registers;
        for (unsigned i = 0; i < lanes; i++) {
            block->special[0][i] = i % threads[0];
            block->special[1][i] = i / threads[0] % threads[1];
            block->special[2][i] = i / threads[0] / threads[1];
            for (int axis = 0; axis < 3; axis++) {
                block->special[3 + axis][i] = threads[axis];
                block->special[6 + axis][i] = at[axis];
                block->special[9 + axis][i] = grid[axis];
            }
        }
        wrong = run_block(kernel, block, 0, launch, &steps);
    }
    free(registers);
    free(block);
    return wrong;
}
