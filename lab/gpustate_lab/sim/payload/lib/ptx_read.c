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
#include "lab.h"
#include "ptx_inner.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct { const char *text; enum op op; int operands; } names[] = {
    {"ld.param", LD_PARAM, 2}, {"ld.global", LD_GLOBAL, 2}, {"st.global", ST_GLOBAL, 2}, {"mov", MOV, 2},
    {"cvta", CVTA, 2}, {"cvt", CVT, 2}, {"add", ADD, 3}, {"sub", SUB, 3}, {"mul", MUL, 3}, {"mad", MAD, 4},
    {"fma", MAD, 4}, {"div", DIV, 3}, {"rem", REM, 3}, {"min", MIN, 3}, {"max", MAX, 3}, {"and", AND, 3},
    {"or", OR, 3}, {"xor", XOR, 3}, {"not", NOT, 2}, {"neg", NEG, 2}, {"shl", SHL, 3}, {"shr", SHR, 3},
    {"setp", SETP, 3}, {"selp", SELP, 4}, {"bra", BRA, 1}, {"ret", RET, 0}, {"exit", RET, 0},
};

static const struct { const char *text; struct type type; } types[] = {
    {"u8", {UNSIGNED, 1}}, {"u16", {UNSIGNED, 2}}, {"u32", {UNSIGNED, 4}}, {"u64", {UNSIGNED, 8}},
    {"s8", {SIGNED, 1}}, {"s16", {SIGNED, 2}}, {"s32", {SIGNED, 4}}, {"s64", {SIGNED, 8}},
    {"b8", {UNSIGNED, 1}}, {"b16", {UNSIGNED, 2}}, {"b32", {UNSIGNED, 4}}, {"b64", {UNSIGNED, 8}},
    {"f32", {FLOAT, 4}}, {"f64", {FLOAT, 8}}, {"pred", {PREDICATE, 1}},
};
/* Modifiers that change nothing on IEEE hardware where no two threads run at once. */
static const char *const harmless[] = {"to", "global", "rn", "rni", "nc", "ftz", "uni", "relaxed", "weak", "volatile", "cg", "ca", "cs"};

static const struct { const char *text; enum compare compare; } compares[] = {
    {"eq", EQ}, {"ne", NE}, {"lt", LT}, {"le", LE}, {"gt", GT}, {"ge", GE},
    {"lo", LT}, {"ls", LE}, {"hi", GT}, {"hs", GE},
};
static const char *const specials[] = {"%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ntid.z",
                                       "%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z"};

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
