/*
--manual: the man page in roff, and the completions of bash and zsh. All three are made from the flag table.
  page      NAME, SYNOPSIS, DESCRIPTION, OPTIONS by the headings of the table, then fixed sections
  bash      one line of a `case` for each flag whose value can be suggested
  zsh       one argument of _arguments for each flag
defines: ManualRow, ValueKind, print_manual
*/
#pragma once
#include "llmc/run/train_args.h"
#include "llmc/run/version.h"
#include <ctype.h>

// ---- roff: escaped and wrapped text

// columns of a line of text in roff, before characters are escaped; a longer word stands alone
enum { MANUAL_LINE = 62, MANUAL_ONE_LINE = INT_MAX };

// one character. In code, - and ' are printed as typed; in text, - between letters is a hyphen.
static inline void manual_character(FILE *file, char before, char c, char after, bool code) {
    bool hyphen = !code && isalpha((unsigned char)before) && isalpha((unsigned char)after);
    if (c == '-' && !hyphen) {
        fputs("\\-", file);
    } else if (c == '\'' && code) {
        fputs("\\(aq", file);
    } else if (c == '`') {
        fputs("\\(ga", file);
    } else if (c == '\\') {
        fputs("\\e", file);
    } else {
        fputc(c, file);
    }
}

// A word, with flags in bold: "(-d", "-b," and all words of code. A . or ' at the start of a line would be a command.
static inline void manual_word(FILE *file, const char *word, int length, bool code, bool line_start) {
    int begin = (int)strspn(word, "(`"), end = length;
    bool flag = !code && begin < length && word[begin] == '-' && begin + 1 < length;
    if (flag) {
        int dashes = (int)strspn(word + begin, "-");
        for (end = begin + dashes; end < length && (isalnum((unsigned char)word[end]) || word[end] == '-'); end++) {}
    }
    if (line_start && (word[0] == '.' || word[0] == '\'')) { fputs("\\&", file); }
    for (int i = 0; i < length; i++) {
        if (flag && i == begin) { fputs("\\fB", file); }
        if (flag && i == end) { fputs("\\fR", file); }
        manual_character(file, i ? word[i - 1] : ' ', word[i], word[i + 1], code || (flag && i < end));
    }
    if (flag && end == length) { fputs("\\fR", file); }
}

// Text or code in lines of `width` columns, without the last newline. A sentence begins a line, as roff expects.
static inline void manual_print(FILE *file, const char *text, bool code, int width) {
    for (int column = 0; *text;) {
        int length = (int)strcspn(text, " ");
        if (column && column + 1 + length > width) {
            fputc('\n', file);
            column = 0;
        }
        if (column) { fputc(' ', file); }
        manual_word(file, text, length, code, column == 0);
        column += length + 1;
        bool sentence = !code && length > 1 && text[length - 1] == '.' && text[length - 2] != '.';
        text += length;
        text += strspn(text, " ");
        if (sentence && *text) {
            fputc('\n', file);
            column = 0;
        }
    }
}

static inline void manual_text(FILE *file, const char *text) {
    manual_print(file, text, false, MANUAL_LINE);
    fputc('\n', file);
}

// a command in bold, without the ./ of a build
static inline void manual_code(FILE *file, const char *command, int width) {
    char text[1024];
    const char *place = strstr(command, "./train_gpt2");
    int length = (int)(place ? place - command : (ptrdiff_t)strlen(command));
    snprintf(text, sizeof text, "%.*s%s", length, command, place ? place + 2 : "");
    fputs("\\fB", file);
    manual_print(file, text, true, width);
    fputs("\\fR\n", file);
}

// ---- the man page

typedef struct {
    const char *term, *text;
} ManualRow;

static const ManualRow manual_exit_status[] = {
    {"0", "Done, stopped by a signal, or stopped by --time-limit."},
    {"1", "Failed while running. Also stopped by a signal to mpirun other than SIGUSR1."},
    {"2", "Wrong usage or input, said in one sentence before any file is written."},
    {NULL, NULL},
};
static const ManualRow manual_files[] = {
    {"DIR/config.json", "The flags of the run in -o."},
    {"DIR/metrics.jsonl", "One line for each update, validation and HellaSwag score."},
    {"DIR/step_00000500/", "A checkpoint, which Hugging Face's GPT-2 loads and -y 1 resumes."},
    {HELLASWAG_JSON, "The examples of -h 1, relative to the current folder."},
    {"~/.cache/train_gpt2/",
     "The fastest algorithm of each matmul and the self-checks that passed, on a GPU. The times "
     "of -f auto, on a CPU."},
    {NULL, NULL},
};
static const ManualRow manual_environment[] = {
    {"OMP_NUM_THREADS", "CPU threads, unless --threads is given."},
    {"TRAIN_GPT2_ARCH",
     "In a program for many CPUs: the CPU level, v2, v3, v4 or bf16. Unset: the highest of this CPU."},
    {"TRAIN_GPT2_AUTOTUNE", "0: matmuls on a GPU take cuBLASLt's first choice, without autotuning."},
    {"TRAIN_GPT2_EARLY_LAUNCHES", "0: a kernel on a GPU starts after the one before it has ended."},
    {"TRAIN_GPT2_PICKS", "The autotune cache's file, FILE.inputs for -f auto; empty: no cache is read or written."},
    {"TRAIN_GPT2_SELF_CHECK", "The file of the self-check's results; empty: a run begins without the check."},
    {NULL, NULL},
};
static const ManualRow manual_examples[] = {
    {"train_gpt2 -i my.txt -e l6h6c384 -b 16 -t 256 -x 5000 -o runs/mine -n 500", "Train on the bytes of a text."},
    {"train_gpt2 -o runs/mine -y 1", "Resume the run with the same flags."},
    {"train_gpt2 --generate 200 -e runs/mine --prompt Once --top-k 40", "Continue a prompt."},
    {"train_gpt2 --plan -e d48 -b 4", "Print the memory of GPT-2 1558M, tensor by tensor."},
    {"mpirun -np 8 --bind-to none train_gpt2 -i 'data/*_train_*.bin' -e d48 -z 1", "Train on 8 ranks with ZeRO."},
    {NULL, NULL},
};
static const char manual_description[] =
    "train_gpt2 trains GPT-2 on a CPU, on an NVIDIA GPU, or on many ranks with ZeRO and tensor parallelism. It reads "
    "text files or llm.c's token shards. It writes checkpoints that Hugging Face's GPT-2 loads, and resumes them bit "
    "for bit.";
static const char manual_values[] =
    "A flag has a letter, a name or both: -b 4, --micro-batch 4 and --micro-batch=4 are the same. The last occurrence "
    "of a flag wins.";
static const char manual_pages[] =
    "Pages such as doc/training.md are in share/doc/train_gpt2 under the prefix of the installation. Debian's package "
    "has them in /usr/share/doc/train-gpt2.";

static inline void manual_section(FILE *file, const char *title, const ManualRow *rows) {
    fprintf(file, ".SH %s\n", title);
    for (; rows->term; rows++) {
        fputs(".TP\n", file);
        manual_code(file, rows->term, MANUAL_ONE_LINE);
        manual_text(file, rows->text);
    }
}

// "-k, --schedule NAME" in bold, the value in italics
static inline void manual_tag(FILE *file, const Flag *flag) {
    char usage[FLAG_TEXT];
    flag_usage_text(flag, usage);
    int name = (int)strcspn(usage, " [");
    fputs(".TP\n", file);
    if (flag->letter) { fprintf(file, "\\fB\\-%s\\fR%s", flag->letter, flag->name ? ", " : " "); }
    fputs(flag->name ? "\\fB" : "\\fI", file);
    for (int i = 0; usage[i]; i++) {
        if (i == name) { fputs(flag->name ? "\\fR\\fI" : "", file); }
        manual_character(file, ' ', usage[i], ' ', true);
    }
    fputs("\\fR\n", file);
}

static inline void manual_option(FILE *file, const Flag *flag) {
    char text[2 * FLAG_TEXT], takes[FLAG_TEXT];
    manual_tag(file, flag);
    flag_help_text(flag, &default_args, text);
    manual_text(file, text);
    flag_takes_text(flag, takes);
    snprintf(text, sizeof text, "Value: %s.", takes);
    fputs(".IP\n", file);
    if (flag_is_number(flag) || flag->choices || flag_is_amount(flag)) { manual_text(file, text); }
}

static inline void manual_page(FILE *file) {
    fprintf(file, ".TH TRAIN_GPT2 1 %s \"train_gpt2 %s\" \"User Commands\"\n", TRAIN_GPT2_DATE, TRAIN_GPT2_VERSION);
    fputs(".nh\n.ad l\n.SH NAME\ntrain_gpt2 \\- train GPT-2 on CPUs and GPUs, and generate text\n.SH SYNOPSIS\n.nf\n",
          file);
    for (int i = 0; i < NUM_USAGES; i++) {
        fputs("\\fBtrain_gpt2\\fR ", file);
        manual_text(file, usages[i].arguments);
    }
    fputs(".fi\n.SH DESCRIPTION\n", file);
    manual_text(file, manual_description);
    fputs(".SH OPTIONS\n", file);
    manual_text(file, manual_values);
    for (int i = 0; i < NUM_FLAGS; i++) {
        if (flag_table[i].type == FLAG_REMOVED) { continue; }
        if (flag_has_no_value(&flag_table[i])) {
            fprintf(file, ".SS %s\n", flag_table[i].help);
        } else {
            manual_option(file, &flag_table[i]);
        }
    }
    manual_section(file, "EXIT STATUS", manual_exit_status);
    manual_section(file, "FILES", manual_files);
    manual_section(file, "ENVIRONMENT", manual_environment);
    manual_section(file, "EXAMPLES", manual_examples);
    fputs(".SH SEE ALSO\n.BR mpirun (1)\n.PP\n", file);
    manual_text(file, manual_pages);
}

// ---- completion: the values of a flag

typedef enum { VALUE_NONE, VALUE_ANY, VALUE_WORDS, VALUE_FILE, VALUE_FOLDER } ValueKind;
enum { VALUE_MAX_WORDS = 10 };  // a whole number with at most as many values is suggested

// the kind of a flag's value, and its words, separated by one space
static inline ValueKind manual_value(const Flag *flag, char words[FLAG_TEXT]) {
    size_t length = 0;
    words[0] = 0;
    for (const char *word = flag->choices; word && *word; word += *word == ' ') {  // the first spelling of each
        length += (size_t)snprintf(words + length, FLAG_TEXT - length, "%s%.*s", length ? " " : "",
                                   (int)strcspn(word, " |"), word);
        word += strcspn(word, " ");
    }
    bool small = flag->type == FLAG_INT && flag->max - flag->min < (double)VALUE_MAX_WORDS;
    for (int i = (int)flag->min; small && i <= (int)flag->max; i++) {
        length += (size_t)snprintf(words + length, FLAG_TEXT - length, "%s%d", length ? " " : "", i);
    }
    if (length) { return VALUE_WORDS; }
    if (flag->type == FLAG_OPTION) { return flag_is_amount(flag) ? VALUE_ANY : VALUE_NONE; }
    if (flag->type != FLAG_STRING) { return VALUE_ANY; }
    if (strcmp(flag->value_name, "DIR") == 0) { return VALUE_FOLDER; }
    return flag_choice_index("GLOB FILE MODEL", flag->value_name) >= 0 ? VALUE_FILE : VALUE_ANY;
}

// the letters and names of all flags, separated by one space
static inline void manual_flag_words(FILE *file, bool dashes) {
    const char *separator = "";
    for (int i = 0; i < NUM_FLAGS; i++) {
        const Flag *flag = &flag_table[i];
        if (flag_has_no_value(flag)) { continue; }
        if (flag->letter) { fprintf(file, "%s%s%s", separator, dashes ? "-" : "", flag->letter); }
        if (flag->letter) { separator = " "; }
        if (flag->name) { fprintf(file, "%s%s%s", separator, dashes ? "--" : "", flag->name); }
        separator = " ";
    }
}

// ---- bash

static const char bash_head[] = "# bash completion of train_gpt2, printed by train_gpt2 --manual=bash\n"
                                "_train_gpt2() {\n"
                                "    local current=${COMP_WORDS[COMP_CWORD]} flag=${COMP_WORDS[COMP_CWORD - 1]}\n"
                                "    local prefix='' joined='' words='' paths=''\n"
                                "    # readline splits --flag=value at the = unless COMP_WORDBREAKS lacks it\n"
                                "    if [[ $current == = ]]; then\n"
                                "        current='' joined=yes\n"
                                "    elif [[ $flag == = ]]; then\n"
                                "        flag=${COMP_WORDS[COMP_CWORD - 2]} joined=yes\n"
                                "    elif [[ $current == --*=* ]]; then\n"
                                "        flag=${current%%=*} prefix=$flag= current=${current#*=} joined=yes\n"
                                "    fi\n"
                                "    COMPREPLY=()\n";

static const char bash_tail[] =
    "    *) [[ -z $joined ]] || return ;;\n"
    "    esac\n"
    "    if [[ -n $paths ]]; then\n"
    "        compopt -o filenames 2>/dev/null\n"
    "        mapfile -t COMPREPLY < <(compgen -P \"$prefix\" -A \"$paths\" -- \"$current\")\n"
    "    else\n"
    "        mapfile -t COMPREPLY < <(compgen -P \"$prefix\" -W \"${words:-$flags}\" -- \"$current\")\n"
    "    fi\n"
    "}\n"
    "complete -F _train_gpt2 train_gpt2\n";

static inline void bash_flag(FILE *file, const Flag *flag) {
    char words[FLAG_TEXT];
    ValueKind kind = manual_value(flag, words);
    if (flag->type == FLAG_OPTION && kind != VALUE_WORDS) { return; }
    bool both = flag->letter && flag->name;
    fprintf(file, "    %s%s%s%s%s) ", flag->letter ? "-" : "", flag->letter ? flag->letter : "", both ? " | " : "",
            flag->name ? "--" : "", flag->name ? flag->name : "");
    if (kind == VALUE_WORDS) {
        fprintf(file, "%swords=\"%s\"", flag->type == FLAG_OPTION ? "[[ -z $joined ]] || " : "", words);
    } else {
        fputs(kind == VALUE_FILE ? "paths=\"file\"" : kind == VALUE_FOLDER ? "paths=\"directory\"" : "return", file);
    }
    fputs(" ;;\n", file);
}

static inline void print_bash_completion(FILE *file) {
    fputs(bash_head, file);
    fputs("    local flags=\"", file);
    manual_flag_words(file, true);
    fputs("\"\n    local topics=\"", file);
    manual_flag_words(file, false);
    fputs("\"\n    case $flag in\n", file);
    for (int i = 0; i < NUM_FLAGS; i++) {
        if (!flag_has_no_value(&flag_table[i])) { bash_flag(file, &flag_table[i]); }
    }
    fputs(bash_tail, file);
}

// ---- zsh

// a description in brackets, inside single quotes
static inline void zsh_text(FILE *file, const char *text) {
    for (; *text; text++) {
        if (*text == '\'') {
            fputs("'\\''", file);
        } else {
            fprintf(file, "%s%c", strchr("[]:\\", *text) ? "\\" : "", *text);
        }
    }
}

// ":NAME:(words)", ":DIR:_files -/"; a value of an option may be left out: "::NAME:..."
static inline void zsh_value(FILE *file, const Flag *flag) {
    char words[FLAG_TEXT];
    ValueKind kind = manual_value(flag, words);
    if (kind == VALUE_NONE) { return; }
    fputs(flag->type == FLAG_OPTION ? "::" : ":", file);
    zsh_text(file, flag->value_name);
    fputc(':', file);
    if (kind == VALUE_WORDS) {
        fprintf(file, "(%s)", words);
    } else {
        fputs(kind == VALUE_FILE ? "_files" : kind == VALUE_FOLDER ? "_files -/" : "", file);
    }
}

// the end of a long flag's name: =value in the same word (=-), or in the same or the next word (=)
static inline const char *zsh_equals(const Flag *flag) {
    bool takes = flag->type != FLAG_OPTION || flag->choices || flag_is_amount(flag);
    return !takes ? "" : flag->type == FLAG_OPTION ? "=-" : "=";
}

static inline void zsh_flag(FILE *file, const Flag *flag) {
    char text[2 * FLAG_TEXT];
    fputs(" \\\n    ", file);
    if (flag->letter && flag->name) {
        fprintf(file, "'(-%s --%s)'{-%s,--%s%s}'", flag->letter, flag->name, flag->letter, flag->name,
                zsh_equals(flag));
    } else {
        fprintf(file, "'%s%s%s", flag->name ? "--" : "-", flag_label(flag), flag->name ? zsh_equals(flag) : "");
    }
    fputc('[', file);
    flag_help_text(flag, &default_args, text);
    zsh_text(file, text);
    fputc(']', file);
    zsh_value(file, flag);
    fputc('\'', file);
}

static inline void print_zsh_completion(FILE *file) {
    fputs("#compdef train_gpt2\n# zsh completion of train_gpt2, printed by train_gpt2 --manual=zsh\n_arguments", file);
    for (int i = 0; i < NUM_FLAGS; i++) {
        if (!flag_has_no_value(&flag_table[i])) { zsh_flag(file, &flag_table[i]); }
    }
    fputc('\n', file);
}

// kind: "" for the man page, bash or zsh
static inline void print_manual(const char *kind) {
    if (strcmp(kind, "bash") == 0) {
        print_bash_completion(stdout);
    } else if (strcmp(kind, "zsh") == 0) {
        print_zsh_completion(stdout);
    } else {
        manual_page(stdout);
    }
}
