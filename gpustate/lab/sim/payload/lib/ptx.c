/* Simulated: runs PTX on the host, block after block, so that a kernel is truly computed and a
 * wrong kernel gives a wrong answer.
 *
 * Taken: .entry with .param scalars, .reg, labels, guards, and the instructions listed in `names`
 * on u8..u64, s8..s64, b8..b64, f32, f64 and pred. Everything else (shared memory, barriers,
 * functions, textures, vectors) is CUDA_ERROR_INVALID_PTX, never a guess.
 *
 * Sources: PTX ISA 8.7, chapters 5 (state spaces), 6 (operands), 9.7 (instructions).
 */
#define _GNU_SOURCE
#include "ptx.h"

#include "lab.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INVALID_IMAGE = 200, NO_BINARY_FOR_GPU = 209, INVALID_PTX = 218, UNSUPPORTED_PTX_VERSION = 222,
       ILLEGAL_ADDRESS = 700, LAUNCH_TIMEOUT = 702 };

#define MAX_STEPS 2000000000ULL /* a kernel without end must not hang a test */
#define MAX_NAME 64
#define MAX_REGISTERS 512
#define MAX_PARAMETERS 32
#define MAX_LABELS 128
#define MAX_INSTRUCTIONS 4096

enum op { LD_PARAM, LD_GLOBAL, ST_GLOBAL, MOV, CVTA, CVT, ADD, SUB, MUL, MAD, DIV, REM, MIN, MAX, AND, OR, XOR,
          NOT, NEG, SHL, SHR, SETP, SELP, BRA, RET };

static const struct { const char *text; enum op op; int operands; } names[] = {
    {"ld.param", LD_PARAM, 2}, {"ld.global", LD_GLOBAL, 2}, {"st.global", ST_GLOBAL, 2}, {"mov", MOV, 2},
    {"cvta", CVTA, 2}, {"cvt", CVT, 2}, {"add", ADD, 3}, {"sub", SUB, 3}, {"mul", MUL, 3}, {"mad", MAD, 4},
    {"fma", MAD, 4}, {"div", DIV, 3}, {"rem", REM, 3}, {"min", MIN, 3}, {"max", MAX, 3}, {"and", AND, 3},
    {"or", OR, 3}, {"xor", XOR, 3}, {"not", NOT, 2}, {"neg", NEG, 2}, {"shl", SHL, 3}, {"shr", SHR, 3},
    {"setp", SETP, 3}, {"selp", SELP, 4}, {"bra", BRA, 1}, {"ret", RET, 0}, {"exit", RET, 0},
};

enum kind { SIGNED, UNSIGNED, FLOAT, PREDICATE };
struct type { enum kind kind; unsigned size; };
static const struct { const char *text; struct type type; } types[] = {
    {"u8", {UNSIGNED, 1}}, {"u16", {UNSIGNED, 2}}, {"u32", {UNSIGNED, 4}}, {"u64", {UNSIGNED, 8}},
    {"s8", {SIGNED, 1}}, {"s16", {SIGNED, 2}}, {"s32", {SIGNED, 4}}, {"s64", {SIGNED, 8}},
    {"b8", {UNSIGNED, 1}}, {"b16", {UNSIGNED, 2}}, {"b32", {UNSIGNED, 4}}, {"b64", {UNSIGNED, 8}},
    {"f32", {FLOAT, 4}}, {"f64", {FLOAT, 8}}, {"pred", {PREDICATE, 1}},
};
/* Modifiers that change nothing on IEEE hardware where no two threads run at once. */
static const char *const harmless[] = {"to", "global", "rn", "rni", "nc", "ftz", "uni", "relaxed", "weak", "volatile", "cg", "ca", "cs"};

enum compare { EQ, NE, LT, LE, GT, GE };
static const struct { const char *text; enum compare compare; } compares[] = {
    {"eq", EQ}, {"ne", NE}, {"lt", LT}, {"le", LE}, {"gt", GT}, {"ge", GE},
    {"lo", LT}, {"ls", LE}, {"hi", GT}, {"hs", GE},
};
enum part { WHOLE, LOW, HIGH, WIDE };

static const char *const specials[] = {"%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ntid.z",
                                       "%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z"};

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

/* ---- reading -------------------------------------------------------------------------------- */

static int named_at(const struct named *all, unsigned count, const char *name) {
    for (unsigned i = 0; i < count; i++)
        if (!strcmp(all[i].name, name))
            return (int)i;
    return -1;
}

static int add_named(struct named *all, unsigned *count, unsigned room, const char *name, unsigned value, struct type type) {
    if (*count == room || strlen(name) >= MAX_NAME || named_at(all, *count, name) >= 0)
        return -1;
    strcpy(all[*count].name, name);
    all[*count].value = value;
    all[(*count)++].type = type;
    return 0;
}

static int type_named(const char *text, struct type *into) {
    for (unsigned i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(types[i].text, text)) {
            *into = types[i].type;
            return 0;
        }
    return -1;
}

static char *trim(char *text) {
    while (isspace((unsigned char)*text))
        text++;
    size_t length = strlen(text);
    while (length && isspace((unsigned char)text[length - 1]))
        text[--length] = 0;
    return text;
}

/* Blank out comments of both kinds. */
static void strip_comments(char *text) {
    for (char *at = text; *at; at++) {
        if (at[0] == '/' && at[1] == '/')
            while (*at && *at != '\n')
                *at++ = ' ';
        else if (at[0] == '/' && at[1] == '*') {
            while (*at && !(at[0] == '*' && at[1] == '/'))
                *at++ = ' ';
            if (*at)
                at[0] = at[1] = ' ';
        }
        if (!*at)
            return;
    }
}

/* 12, -3, 0x1F, 0f3F800000, 0d3FF0000000000000, with a U at the end allowed. */
static int read_immediate(const char *text, struct type type, uint64_t *value) {
    int negative = *text == '-';
    const char *digits = text + negative;
    if (!isdigit((unsigned char)*digits))
        return -1;
    char form = (char)tolower((unsigned char)digits[1]);
    if (digits[0] == '0' && (form == 'f' || form == 'd')) {
        *value = lab_number(digits + 2, 16);
        return (type.kind == FLOAT && type.size == (form == 'f' ? 4u : 8u)) || type.kind == UNSIGNED ? 0 : -1;
    }
    int hex = digits[0] == '0' && form == 'x';
    for (const char *at = digits + (hex ? 2 : 0); *at; at++)
        if (!(hex ? isxdigit((unsigned char)*at) : isdigit((unsigned char)*at)) && !(*at == 'U' && !at[1]))
            return -1;
    *value = lab_number(digits, hex ? 16 : 10);
    if (negative)
        *value = 0 - *value;
    return type.kind == FLOAT ? -1 : 0; /* PTX wants 0f.. for a float */
}

static int read_operand(struct ptx_kernel *kernel, char *text, const struct instruction *of, struct operand *into) {
    text = trim(text);
    if (*text == '[') {
        char *end = strchr(text, ']'), *plus;
        if (!end || end[1])
            return -1;
        *end = 0;
        text = trim(text + 1);
        into->value = 0;
        if ((plus = strchr(text, '+'))) {
            *plus = 0;
            struct type wide = {UNSIGNED, 8};
            if (read_immediate(trim(plus + 1), wide, &into->value) < 0)
                return -1;
            text = trim(text);
        }
        int parameter = of->op == LD_PARAM;
        int at = parameter ? named_at(kernel->parameters, kernel->parameter_count, text)
                           : named_at(kernel->registers, kernel->register_count, text);
        into->kind = parameter ? PARAMETER : REGISTER;
        into->number = (unsigned)at;
        if (parameter && at >= 0 && (into->value || of->type.size > kernel->parameters[at].type.size))
            return -1;
        return at;
    }
    if (*text == '%') {
        for (unsigned i = 0; i < sizeof specials / sizeof *specials; i++)
            if (!strcmp(specials[i], text)) {
                *into = (struct operand){SPECIAL, i, 0};
                return 0;
            }
        int at = named_at(kernel->registers, kernel->register_count, text);
        *into = (struct operand){REGISTER, (unsigned)at, 0};
        return at;
    }
    into->kind = IMMEDIATE;
    return read_immediate(text, of->type, &into->value);
}

/* `add.rn.f32` into op, types and modifiers. */
static int read_opcode(char *text, struct instruction *into, int *operands) {
    char *rest = NULL;
    for (unsigned i = 0; i < sizeof names / sizeof *names && !rest; i++) {
        size_t length = strlen(names[i].text);
        if (!strncmp(names[i].text, text, length) && (text[length] == '.' || !text[length])) {
            into->op = names[i].op;
            *operands = names[i].operands;
            rest = text + length;
        }
    }
    if (!rest)
        return -1;
    int type_count = 0, compared = 0;
    char *word;
    if (*rest == '.')
        rest++;
    while ((word = strsep(&rest, ".")) && *word) {
        struct type type;
        int known = 0;
        if (type_named(word, &type) == 0) {
            if (type_count++ == 0)
                into->type = into->from = type;
            else
                into->from = type;
            continue;
        }
        for (unsigned i = 0; i < sizeof compares / sizeof *compares; i++)
            if (into->op == SETP && !strcmp(compares[i].text, word)) {
                into->compare = compares[i].compare;
                known = compared = 1;
            }
        if (!strcmp(word, "lo") && !compared)
            into->part = LOW, known = 1;
        else if (!strcmp(word, "hi") && !compared)
            into->part = HIGH, known = 1;
        else if (!strcmp(word, "wide"))
            into->part = WIDE, known = 1;
        else if (!strcmp(word, "rzi") || !strcmp(word, "rz"))
            known = into->op == CVT;
        for (unsigned i = 0; i < sizeof harmless / sizeof *harmless; i++)
            known = known || !strcmp(harmless[i], word);
        if (!known)
            return -1;
    }
    int integer_product = (into->op == MUL || into->op == MAD) && into->type.kind != FLOAT;
    if (integer_product && into->part == WHOLE)
        return -1; /* PTX wants .lo, .hi or .wide there */
    if (into->op == SETP && !compared)
        return -1;
    int wants_types = into->op == BRA || into->op == RET ? 0 : into->op == CVT ? 2 : 1;
    return type_count == wants_types ? 0 : -1;
}

/* `.reg .b32 %r<5>` or `.reg .u32 %a, %b`. */
static int read_registers(struct ptx_kernel *kernel, char *text) {
    char *names_at = text;
    struct type type;
    char *word = strsep(&names_at, " \t\n\r");
    if (!names_at || *word != '.' || type_named(word + 1, &type) < 0)
        return -1;
    char *name;
    while ((name = strsep(&names_at, ","))) {
        name = trim(name);
        char *many = strchr(name, '<');
        unsigned count = many ? (unsigned)lab_number(many + 1, 10) : 1;
        if (many)
            *many = 0;
        for (unsigned i = 0; i < count; i++) {
            char full[MAX_NAME + 16];
            snprintf(full, sizeof full, many ? "%.40s%u" : "%.40s", name, i);
            if (*name != '%' || add_named(kernel->registers, &kernel->register_count, MAX_REGISTERS, full, 0, type) < 0)
                return -1;
        }
    }
    return 0;
}

static int read_statement(struct ptx_kernel *kernel, char *text, char labels[][MAX_NAME]) {
    char *colon;
    text = trim(text);
    while ((colon = strchr(text, ':')) && !memchr(text, ' ', (size_t)(colon - text))) {
        *colon = 0;
        struct type none = {UNSIGNED, 0};
        if (add_named(kernel->labels, &kernel->label_count, MAX_LABELS, text, kernel->instruction_count, none) < 0)
            return -1;
        text = trim(colon + 1);
    }
    if (!*text)
        return 0;
    if (!strncmp(text, ".reg", 4) && isspace((unsigned char)text[4]))
        return read_registers(kernel, trim(text + 4));
    if (kernel->instruction_count == MAX_INSTRUCTIONS)
        return -1;
    struct instruction *into = &kernel->instructions[kernel->instruction_count];
    memset(into, 0, sizeof *into);
    into->guard = -1;
    char *rest = text;
    if (*rest == '@') {
        char *guard = strsep(&rest, " \t\n");
        into->guard_is_not = guard[1] == '!';
        into->guard = named_at(kernel->registers, kernel->register_count, guard + 1 + into->guard_is_not);
        if (into->guard < 0 || !rest || kernel->registers[into->guard].type.kind != PREDICATE)
            return -1;
        rest = trim(rest);
    }
    char *opcode = strsep(&rest, " \t\n");
    int wanted, got = 0;
    if (read_opcode(opcode, into, &wanted) < 0)
        return -1;
    if (into->op == BRA) {
        if (!rest)
            return -1;
        into->operands[0].kind = LABEL;
        snprintf(labels[kernel->instruction_count++], MAX_NAME, "%.60s", trim(rest));
        return 0;
    }
    for (char *word; rest && (word = strsep(&rest, ",")); got++)
        if (got == 4 || read_operand(kernel, word, into, &into->operands[got]) < 0)
            return -1;
    if (got != wanted || (into->op != ST_GLOBAL && got && into->operands[0].kind != REGISTER))
        return -1;
    kernel->instruction_count++;
    return 0;
}

/* `.param .u64 a, .param .u32 b` */
static int read_parameters(struct ptx_kernel *kernel, char *text) {
    char *item;
    if (!*trim(text))
        return 0;
    while ((item = strsep(&text, ","))) {
        struct type type = {UNSIGNED, 0};
        char *name = NULL, *word;
        item = trim(item);
        if (strncmp(item, ".param", 6))
            return -1;
        item += 6;
        while ((word = strsep(&item, " \t\n\r"))) {
            if (!*word)
                continue;
            if (*word == '.' && !type.size && type_named(word + 1, &type) < 0)
                return -1;
            if (*word != '.')
                name = word;
        }
        if (!name || !type.size || strchr(name, '[') ||
            add_named(kernel->parameters, &kernel->parameter_count, MAX_PARAMETERS, name, 0, type) < 0)
            return -1;
    }
    return 0;
}

static int read_kernel(struct ptx_kernel *kernel, char *parameters, char *body) {
    static __thread char labels[MAX_INSTRUCTIONS][MAX_NAME];
    char *statement;
    if (read_parameters(kernel, parameters) < 0)
        return -1;
    while ((statement = strsep(&body, ";")))
        if (read_statement(kernel, statement, labels) < 0)
            return -1;
    for (unsigned i = 0; i < kernel->instruction_count; i++)
        if (kernel->instructions[i].op == BRA) {
            int at = named_at(kernel->labels, kernel->label_count, labels[i]);
            if (at < 0)
                return -1;
            kernel->instructions[i].operands[0].number = kernel->labels[at].value;
        }
    return 0;
}

/* Everything before the first entry: .version, .target and .address_size, in this order. */
static int read_header(char *text, unsigned target, unsigned ptx_version) {
    char *version = strstr(text, ".version"), *wanted = strstr(text, ".target"), *dot;
    if (!version || !wanted || wanted < version || !(dot = strchr(version + 8, '.')))
        return INVALID_PTX;
    if (lab_number(version + 8, 10) * 10 + lab_number(dot + 1, 10) > ptx_version)
        return UNSUPPORTED_PTX_VERSION;
    char *sm = strstr(wanted, "sm_");
    if (!sm)
        return INVALID_PTX;
    return lab_number(sm + 3, 10) > target ? NO_BINARY_FOR_GPU : 0;
}

static int read_module(struct ptx_module *module, char *text, unsigned target, unsigned ptx_version) {
    char *entry = strstr(text, ".entry");
    if (!entry)
        return INVALID_PTX;
    *entry = 0;
    int refused = read_header(text, target, ptx_version);
    if (refused)
        return refused;
    while (entry) {
        char *name = trim(entry + 1 + strlen("entry")), *open = strchr(name, '(');
        char *close = open ? strchr(open, ')') : NULL, *body = close ? strchr(close, '{') : NULL;
        char *end = body ? strchr(body, '}') : NULL;
        if (!end || memchr(body + 1, '{', (size_t)(end - body - 1)))
            return INVALID_PTX;
        *open = *close = *body = *end = 0;
        struct ptx_kernel *kernel = calloc(1, sizeof *kernel);
        if (!kernel)
            return 2;
        kernel->next = module->kernels;
        module->kernels = kernel;
        snprintf(kernel->name, sizeof kernel->name, "%.60s", trim(name));
        if (*trim(close + 1) || read_kernel(kernel, open + 1, body + 1) < 0)
            return INVALID_PTX;
        entry = strstr(end + 1, ".entry");
        if (entry)
            *entry = 0;
        char *between = trim(end + 1);
        if (*between && strcmp(between, ".visible"))
            return INVALID_PTX;
    }
    return 0;
}

int ptx_load(const char *image, unsigned target, unsigned ptx_version, struct ptx_module **into) {
    if (!image || !strncmp(image, "\177ELF", 4))
        return INVALID_IMAGE;
    char *text = strdup(image);
    struct ptx_module *module = calloc(1, sizeof *module);
    if (!text || !module) {
        free(text);
        free(module);
        return 2;
    }
    strip_comments(text);
    int refused = read_module(module, text, target, ptx_version);
    free(text);
    if (refused) {
        ptx_unload(module);
        return refused;
    }
    *into = module;
    return 0;
}

void ptx_unload(struct ptx_module *module) {
    for (struct ptx_kernel *at = module->kernels, *next; at; at = next) {
        next = at->next;
        free(at);
    }
    free(module);
}

struct ptx_kernel *ptx_kernel(struct ptx_module *module, const char *name) {
    for (struct ptx_kernel *at = module->kernels; at; at = at->next)
        if (!strcmp(at->name, name))
            return at;
    return NULL;
}

/* ---- running -------------------------------------------------------------------------------- */

/* One instruction runs over all lanes (threads) of a block before the next one starts: the loops
 * below are what the compiler turns into vector code. Where a branch splits the lanes, each lane
 * goes on alone, as a block of one. Registers of one number lie beside one another.
 */
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
