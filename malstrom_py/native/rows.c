/* What an exchange does with every row: the slots of keys, the rows of each owner, and rows as columns of their fields.

   A module for Python, loaded by `malstrom_py.accelerator.rows`. Rules. The slots are those of
   `malstrom_py.rescale.slots`, to the bit. A key of another exact type than str, int, bool, None, bytes and tuples of
   them is given to a Python function, which may run anything: what is used after it is read again. Nothing else here
   runs code of users: rows are taken apart only if they are exact tuples or dicts of values of exact builtin types. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "key_hash.h"

#define VERSION 1   /* as `malstrom_py.accelerator` asks for it: what the functions take and return */
#define FORM_MAX 512 /* of a tuple; a larger one is left to Python */
#define DEPTH_MAX 8
#define FIELDS_MAX 64
#define OTHER (-1)
#define FAILED (-2)

/* The UTF-8 of a str: its own bytes, or those of `*held`, a new reference. NULL with an error set if that fails. */
static const uint8_t *utf8_of(PyObject *text, Py_ssize_t *length, PyObject **held) {
    *held = NULL;
    if (PyUnicode_IS_COMPACT_ASCII(text)) {
        *length = PyUnicode_GET_LENGTH(text);
        return PyUnicode_1BYTE_DATA(text);
    }
    *held = PyUnicode_AsEncodedString(text, "utf-8", "surrogatepass");
    if (!*held) return NULL;
    *length = PyBytes_GET_SIZE(*held);
    return (const uint8_t *)PyBytes_AS_STRING(*held);
}

/* Whether `number`, an int or bool, fits 64 bits. */
static inline int fits(PyObject *number, int64_t *value) {
    int overflows;
    *value = PyLong_AsLongLongAndOverflow(number, &overflows);
    return !overflows;
}

static Py_ssize_t with_text(uint8_t tag, const uint8_t *data, Py_ssize_t length, uint8_t *form, Py_ssize_t at) {
    if (at + HEAD + length > FORM_MAX) return OTHER;
    form[at] = tag;
    put_word(form + at + 1, (uint64_t)length);
    memcpy(form + at + HEAD, data, (size_t)length);
    return at + HEAD + length;
}

/* Write the canonical form of `key` at `at`, and return where it ends; OTHER if it is left to Python, or FAILED. */
static Py_ssize_t with_form(PyObject *key, uint8_t *form, Py_ssize_t at, int depth) {
    int64_t number;
    if (at + HEAD > FORM_MAX || depth > DEPTH_MAX) return OTHER;
    if (PyUnicode_CheckExact(key)) {
        Py_ssize_t length;
        PyObject *held;
        const uint8_t *data = utf8_of(key, &length, &held);
        if (!data) return FAILED;
        at = with_text(TAG_TEXT, data, length, form, at);
        Py_XDECREF(held);
        return at;
    }
    if (PyLong_CheckExact(key) || PyBool_Check(key)) {
        if (!fits(key, &number)) return OTHER;
        form[at] = TAG_INT;
        put_word(form + at + 1, (uint64_t)number);
        return at + HEAD;
    }
    if (key == Py_None) {
        form[at] = TAG_NONE;
        return at + 1;
    }
    if (PyBytes_CheckExact(key))
        return with_text(TAG_BYTES, (const uint8_t *)PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), form, at);
    if (PyTuple_CheckExact(key)) {
        Py_ssize_t items = PyTuple_GET_SIZE(key);
        form[at] = TAG_TUPLE;
        put_word(form + at + 1, (uint64_t)items);
        at += HEAD;
        for (Py_ssize_t i = 0; i < items && at >= 0; i++) at = with_form(PyTuple_GET_ITEM(key, i), form, at, depth + 1);
        return at;
    }
    return OTHER;
}

/* The hash of `key`: 0, OTHER if it is left to Python, or FAILED with an error set. */
static int hash_of(PyObject *key, uint64_t *hash) {
    uint8_t form[FORM_MAX];
    Py_ssize_t length;
    int64_t number;
    if (PyUnicode_CheckExact(key)) {
        PyObject *held;
        const uint8_t *data = utf8_of(key, &length, &held);
        if (!data) return FAILED;
        *hash = hash_of_text(TAG_TEXT, data, (uint64_t)length);
        Py_XDECREF(held);
        return 0;
    }
    if (PyLong_CheckExact(key) || PyBool_Check(key)) {
        if (!fits(key, &number)) return OTHER;
        *hash = hash_of_int(number);
        return 0;
    }
    length = with_form(key, form, 0, 0);
    if (length < 0) return (int)length;
    *hash = hash_of_form(form, (uint64_t)length);
    return 0;
}

/* What `find(key)` returns: a slot below `count`. FAILED with an error set if it does not. */
static int64_t found_slot(PyObject *find, PyObject *key, unsigned long count) {
    PyObject *answer = PyObject_CallOneArg(find, key);
    if (!answer) return FAILED;
    unsigned long slot = PyLong_AsUnsignedLong(answer);
    Py_DECREF(answer);
    if (slot == (unsigned long)-1 && PyErr_Occurred()) return FAILED;
    if (slot >= count) {
        PyErr_Format(PyExc_ValueError, "slot %lu of %lu", slot, count);
        return FAILED;
    }
    return (int64_t)slot;
}

static int is_list(PyObject *object, const char *name) {
    if (PyList_Check(object)) return 1;
    PyErr_Format(PyExc_TypeError, "%s is a list, not %.100s", name, Py_TYPE(object)->tp_name);
    return 0;
}

PyDoc_STRVAR(slots_doc, "slots(keys, count, find) -> bytes\n\n"
                        "The slot of each key of a list, as uint32. ``find``: key -> slot, for keys of other types.");

static PyObject *slots(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    if (given != 3) return PyErr_Format(PyExc_TypeError, "slots takes keys, count and find");
    PyObject *keys = args[0], *find = args[2];
    unsigned long count = PyLong_AsUnsignedLong(args[1]);
    if (PyErr_Occurred() || !is_list(keys, "keys")) return NULL;
    if (!count || count > UINT32_MAX) return PyErr_Format(PyExc_ValueError, "count is %lu", count);
    Py_ssize_t rows = PyList_GET_SIZE(keys);
    PyObject *result = PyBytes_FromStringAndSize(NULL, rows * (Py_ssize_t)sizeof(uint32_t));
    if (!result) return NULL;
    char *out = PyBytes_AS_STRING(result);
    for (Py_ssize_t i = 0; i < rows; i++) {
        uint64_t hash = 0;
        if (PyList_GET_SIZE(keys) != rows) { /* by `find` */
            PyErr_SetString(PyExc_RuntimeError, "the list of keys has changed");
            goto failed;
        }
        PyObject *key = Py_NewRef(PyList_GET_ITEM(keys, i));
        int how = hash_of(key, &hash);
        int64_t slot = how == OTHER ? found_slot(find, key, count) : how == FAILED ? FAILED : (int64_t)(hash % count);
        Py_DECREF(key);
        if (slot < 0) goto failed;
        uint32_t narrow = (uint32_t)slot;
        memcpy(out + i * (Py_ssize_t)sizeof narrow, &narrow, sizeof narrow);
    }
    return result;
failed:
    Py_DECREF(result);
    return NULL;
}

/* The rows of `column` by their rank in `parts` lists, of `lengths`: a list of lists. */
static PyObject *split_column(PyObject *column, const uint16_t *ranks, Py_ssize_t rows, Py_ssize_t parts,
                              const Py_ssize_t *lengths, PyObject ***next) {
    PyObject *result = PyList_New(parts);
    if (!result) return NULL;
    for (Py_ssize_t part = 0; part < parts; part++) {
        PyObject *list = PyList_New(lengths[part]);
        if (!list) {
            Py_DECREF(result);
            return NULL;
        }
        PyList_SET_ITEM(result, part, list);
        next[part] = ((PyListObject *)list)->ob_item;
    }
    if (PyList_GET_SIZE(column) != rows) { /* what is allocated may start the garbage collector, and it finalizers */
        Py_DECREF(result);
        return PyErr_Format(PyExc_RuntimeError, "a column has changed");
    }
    for (Py_ssize_t i = 0; i < rows; i++) {
        PyObject *item = PyList_GET_ITEM(column, i);
        Py_INCREF(item);
        *next[ranks[i]]++ = item;
    }
    return result;
}

/* The rank of each row: that of its slot. Counts the rows of each rank. 0 with an error set if a slot has none. */
static int rank_rows(const Py_buffer *slots, const Py_buffer *by_slot, Py_ssize_t parts, uint16_t *ranks,
                     Py_ssize_t *lengths) {
    Py_ssize_t rows = slots->len / (Py_ssize_t)sizeof(uint32_t), known = by_slot->len / (Py_ssize_t)sizeof(uint16_t);
    for (Py_ssize_t i = 0; i < rows; i++) {
        uint32_t slot;
        memcpy(&slot, (const char *)slots->buf + i * (Py_ssize_t)sizeof slot, sizeof slot);
        if ((Py_ssize_t)slot >= known) {
            PyErr_Format(PyExc_IndexError, "slot %lu of %zd", (unsigned long)slot, known);
            return 0;
        }
        memcpy(&ranks[i], (const char *)by_slot->buf + slot * sizeof(uint16_t), sizeof(uint16_t));
        if (ranks[i] >= parts) {
            PyErr_Format(PyExc_IndexError, "part %d of %zd", ranks[i], parts);
            return 0;
        }
        lengths[ranks[i]]++;
    }
    return 1;
}

PyDoc_STRVAR(split_doc,
             "split(slots, by_slot, parts, columns) -> list\n\n"
             "Each of ``columns``, lists of one length, as ``parts`` lists: the rows by the part of their slot.\n"
             "``slots``: uint32, one per row; ``by_slot``: uint16, the part of each slot. None stays None.");

static PyObject *split(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    if (given != 4) return PyErr_Format(PyExc_TypeError, "split takes slots, by_slot, parts and columns");
    Py_ssize_t parts = PyLong_AsSsize_t(args[2]);
    if (parts < 1 || parts > UINT16_MAX + 1) {
        if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "parts is %zd", parts);
        return NULL;
    }
    if (!PyTuple_CheckExact(args[3])) return PyErr_Format(PyExc_TypeError, "columns is a tuple");
    Py_buffer slots, by_slot;
    if (PyObject_GetBuffer(args[0], &slots, PyBUF_SIMPLE)) return NULL;
    if (PyObject_GetBuffer(args[1], &by_slot, PyBUF_SIMPLE)) {
        PyBuffer_Release(&slots);
        return NULL;
    }
    Py_ssize_t rows = slots.len / (Py_ssize_t)sizeof(uint32_t), columns = PyTuple_GET_SIZE(args[3]);
    uint16_t *ranks = PyMem_New(uint16_t, rows ? rows : 1);
    Py_ssize_t *lengths = PyMem_Calloc((size_t)parts, sizeof *lengths);
    PyObject ***next = PyMem_New(PyObject **, parts), *result = NULL;
    if (!ranks || !lengths || !next) {
        PyErr_NoMemory();
        goto done;
    }
    if (!rank_rows(&slots, &by_slot, parts, ranks, lengths)) goto done;
    result = PyList_New(columns);
    for (Py_ssize_t i = 0; result && i < columns; i++) {
        PyObject *column = PyTuple_GET_ITEM(args[3], i), *lists = NULL;
        if (column == Py_None) {
            lists = Py_NewRef(Py_None);
        } else if (is_list(column, "a column")) {
            if (PyList_GET_SIZE(column) == rows)
                lists = split_column(column, ranks, rows, parts, lengths, next);
            else
                PyErr_Format(PyExc_ValueError, "%zd slots for %zd rows", rows, PyList_GET_SIZE(column));
        }
        if (!lists)
            Py_CLEAR(result);
        else
            PyList_SET_ITEM(result, i, lists);
    }
done:
    PyMem_Free(ranks);
    PyMem_Free(lengths);
    PyMem_Free(next);
    PyBuffer_Release(&slots);
    PyBuffer_Release(&by_slot);
    return result;
}

/* Whether values of the type cannot change and refer to nothing: they need no place in a pickle of the whole row. */
static inline int is_plain(const PyTypeObject *type) {
    return type == &PyUnicode_Type || type == &PyLong_Type || type == &PyFloat_Type || type == &PyBool_Type ||
           type == &PyBytes_Type || type == Py_TYPE(Py_None);
}

/* The names of the `width` fields of a dict, exact strings; NULL, without an error, if it has other keys. */
static PyObject *names_of(PyObject *dict, Py_ssize_t width) {
    PyObject *names = PyTuple_New(width), *name, *value;
    Py_ssize_t at = 0;
    if (names && PyDict_GET_SIZE(dict) != width) Py_CLEAR(names); /* by a finalizer */
    for (Py_ssize_t i = 0; names && i < width && PyDict_Next(dict, &at, &name, &value); i++) {
        if (PyUnicode_CheckExact(name))
            PyTuple_SET_ITEM(names, i, Py_NewRef(name));
        else
            Py_CLEAR(names);
    }
    return names;
}

/* Put the values of a row into `fields`, borrowed: 0 if it is no exact tuple of `width`, or no exact dict of `names`. */
static int take_apart(PyObject *row, PyObject *names, Py_ssize_t width, PyObject **fields) {
    if (!names) {
        if (!PyTuple_CheckExact(row) || PyTuple_GET_SIZE(row) != width) return 0;
        for (Py_ssize_t i = 0; i < width; i++) fields[i] = PyTuple_GET_ITEM(row, i);
        return 1;
    }
    if (!PyDict_CheckExact(row) || PyDict_GET_SIZE(row) != width) return 0;
    PyObject *name;
    Py_ssize_t at = 0;
    for (Py_ssize_t i = 0; i < width && PyDict_Next(row, &at, &name, &fields[i]); i++) {
        PyObject *expected = PyTuple_GET_ITEM(names, i);
        if (name != expected && !(PyUnicode_CheckExact(name) && PyUnicode_Compare(name, expected) == 0)) return 0;
    }
    return 1;
}

/* Whether many values of a column are one object: pickle writes each object once, and the receiver has it once. */
static int is_shared(PyObject *column) {
    PyObject *seen[256] = {NULL};
    Py_ssize_t again = 0, rows = PyList_GET_SIZE(column);
    for (Py_ssize_t i = 0; i < rows; i++) {
        PyObject *value = PyList_GET_ITEM(column, i);
        PyObject **place = &seen[((uintptr_t)value >> 4) & 255];
        again += *place == value;
        *place = value;
    }
    return 4 * again > rows;
}

PyDoc_STRVAR(fields_doc,
             "fields(rows, keys) -> (names, [(kind, column)]) | None\n\n"
             "Rows as columns of their fields; None unless all are exact tuples of one width, or exact dicts of the\n"
             "same names in one order, of str, int, float, bool, bytes and None. ``names``: None for tuples.\n"
             "``kind``: the type of all values; None if they differ, or are strings of which many are one object.\n"
             "``column``: None for the very objects of ``keys``.");

static PyObject *fields(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    if (given != 2) return PyErr_Format(PyExc_TypeError, "fields takes rows and keys");
    PyObject *rows = args[0], *keys = args[1] == Py_None ? NULL : args[1];
    if (!is_list(rows, "rows") || (keys && !is_list(keys, "keys"))) return NULL;
    Py_ssize_t count = PyList_GET_SIZE(rows);
    if (keys && PyList_GET_SIZE(keys) != count) return PyErr_Format(PyExc_ValueError, "the lengths differ");
    PyObject *first = Py_NewRef(count ? PyList_GET_ITEM(rows, 0) : Py_None), *names = NULL, *result = NULL;
    PyObject *columns[FIELDS_MAX], *now[FIELDS_MAX];
    PyTypeObject *kinds[FIELDS_MAX];
    int is_key[FIELDS_MAX];
    Py_ssize_t width = PyTuple_CheckExact(first)  ? PyTuple_GET_SIZE(first)
                       : PyDict_CheckExact(first) ? PyDict_GET_SIZE(first)
                                                  : 0;
    Py_ssize_t made = 0;
    if (!width || width > FIELDS_MAX) goto other;
    if (PyDict_CheckExact(first) && !(names = names_of(first, width))) {
        if (PyErr_Occurred()) goto done;
        goto other;
    }
    if (!take_apart(first, names, width, now)) goto other;
    for (Py_ssize_t i = 0; i < width; i++) { /* most rows that are left to pickle are known by the first */
        kinds[i] = Py_TYPE(now[i]);
        is_key[i] = keys != NULL;
        if (!is_plain(kinds[i])) goto other;
    }
    for (; made < width; made++) /* what is allocated may run finalizers, and rows may change */
        if (!(columns[made] = PyList_New(count))) goto done;
    if (PyList_GET_SIZE(rows) != count || (keys && PyList_GET_SIZE(keys) != count)) {
        PyErr_SetString(PyExc_RuntimeError, "the rows have changed");
        goto done;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *key = keys ? PyList_GET_ITEM(keys, i) : NULL;
        if (!take_apart(PyList_GET_ITEM(rows, i), names, width, now)) goto other;
        for (Py_ssize_t j = 0; j < width; j++) {
            PyTypeObject *type = Py_TYPE(now[j]);
            if (type != kinds[j]) {
                if (!is_plain(type)) goto other;
                kinds[j] = NULL;
            }
            is_key[j] &= now[j] == key;
            PyList_SET_ITEM(columns[j], i, Py_NewRef(now[j]));
        }
    }
    PyObject *list = PyList_New(width);
    for (Py_ssize_t i = 0; list && i < width; i++) {
        PyObject *kind = kinds[i] ? (PyObject *)kinds[i] : Py_None;
        if (kinds[i] == &PyUnicode_Type && !is_key[i] && is_shared(columns[i])) kind = Py_None;
        PyObject *field = PyTuple_Pack(2, kind, is_key[i] ? Py_None : columns[i]);
        if (field)
            PyList_SET_ITEM(list, i, field);
        else
            Py_CLEAR(list);
    }
    if (list) result = PyTuple_Pack(2, names ? names : Py_None, list);
    Py_XDECREF(list);
    goto done;
other:
    result = Py_NewRef(Py_None);
done:
    for (Py_ssize_t i = 0; i < made; i++) Py_DECREF(columns[i]);
    Py_XDECREF(names);
    Py_DECREF(first);
    return result;
}

/* Borrowed. The lists may have changed since they were checked: a row is allocated, which may run finalizers. */
static inline PyObject *value_at(PyObject *columns, Py_ssize_t place, Py_ssize_t row) {
    PyObject *column = PyTuple_GET_ITEM(columns, place);
    if (row < PyList_GET_SIZE(column)) return PyList_GET_ITEM(column, row);
    PyErr_SetString(PyExc_RuntimeError, "a column has changed");
    return NULL;
}

/* A dict as `model`, with row number `row` of `columns`. */
static PyObject *dict_of(PyObject *model, PyObject *names, PyObject *columns, Py_ssize_t row) {
    PyObject *dict = PyDict_Copy(model);
    for (Py_ssize_t i = 0; dict && i < PyTuple_GET_SIZE(names); i++) {
        PyObject *value = value_at(columns, i, row);
        if (!value || PyDict_SetItem(dict, PyTuple_GET_ITEM(names, i), value)) Py_CLEAR(dict);
    }
    return dict;
}

/* A tuple of row number `row` of `columns`. Its values are plain, so the garbage collector need not know of it. */
static PyObject *tuple_of(PyObject *columns, Py_ssize_t row) {
    Py_ssize_t width = PyTuple_GET_SIZE(columns);
    PyObject *tuple = PyTuple_New(width);
    for (Py_ssize_t i = 0; tuple && i < width; i++) {
        PyObject *value = value_at(columns, i, row);
        if (value)
            PyTuple_SET_ITEM(tuple, i, Py_NewRef(value));
        else
            Py_CLEAR(tuple);
    }
    if (tuple) PyObject_GC_UnTrack(tuple);
    return tuple;
}

PyDoc_STRVAR(join_doc, "join(names, columns) -> list\n\n"
                       "The rows of `fields` again: tuples, or dicts of ``names``. ``columns``: a tuple of lists.");

static PyObject *join(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given) {
    if (given != 2 || !PyTuple_CheckExact(args[1]) || !PyTuple_GET_SIZE(args[1]))
        return PyErr_Format(PyExc_TypeError, "join takes names and a tuple of columns");
    PyObject *names = args[0] == Py_None ? NULL : args[0], *columns = args[1], *model = NULL;
    Py_ssize_t width = PyTuple_GET_SIZE(columns), rows = 0;
    if (names && (!PyTuple_CheckExact(names) || PyTuple_GET_SIZE(names) != width))
        return PyErr_Format(PyExc_ValueError, "names is a tuple of %zd", width);
    for (Py_ssize_t i = 0; i < width; i++) {
        PyObject *column = PyTuple_GET_ITEM(columns, i);
        if (names && !PyUnicode_CheckExact(PyTuple_GET_ITEM(names, i)))
            return PyErr_Format(PyExc_TypeError, "a name is a str");
        if (!is_list(column, "a column")) return NULL;
        if (i && PyList_GET_SIZE(column) != rows) return PyErr_Format(PyExc_ValueError, "the lengths differ");
        rows = PyList_GET_SIZE(column);
        for (Py_ssize_t j = 0; j < rows; j++)
            if (!is_plain(Py_TYPE(PyList_GET_ITEM(column, j)))) return PyErr_Format(PyExc_TypeError, "it is not plain");
    }
    if (names && !(model = PyDict_New())) return NULL;
    for (Py_ssize_t i = 0; names && i < width; i++) {
        if (PyDict_SetItem(model, PyTuple_GET_ITEM(names, i), Py_None)) {
            Py_DECREF(model);
            return NULL;
        }
    }
    PyObject *result = PyList_New(rows);
    for (Py_ssize_t i = 0; result && i < rows; i++) {
        PyObject *row = names ? dict_of(model, names, columns, i) : tuple_of(columns, i);
        if (row)
            PyList_SET_ITEM(result, i, row);
        else
            Py_CLEAR(result);
    }
    Py_XDECREF(model);
    return result;
}

PyDoc_STRVAR(kind_doc, "kind(column) -> type | None\n\nThe exact type of all values of a list; None if they differ.");

static PyObject *kind(PyObject *Py_UNUSED(self), PyObject *column) {
    if (!is_list(column, "a column")) return NULL;
    Py_ssize_t rows = PyList_GET_SIZE(column);
    if (!rows) Py_RETURN_NONE;
    PyTypeObject *type = Py_TYPE(PyList_GET_ITEM(column, 0));
    for (Py_ssize_t i = 1; i < rows; i++)
        if (Py_TYPE(PyList_GET_ITEM(column, i)) != type) Py_RETURN_NONE;
    return Py_NewRef((PyObject *)type);
}

static PyMethodDef methods[] = {
    {"slots", (PyCFunction)(void (*)(void))slots, METH_FASTCALL, slots_doc},
    {"split", (PyCFunction)(void (*)(void))split, METH_FASTCALL, split_doc},
    {"fields", (PyCFunction)(void (*)(void))fields, METH_FASTCALL, fields_doc},
    {"join", (PyCFunction)(void (*)(void))join, METH_FASTCALL, join_doc},
    {"kind", kind, METH_O, kind_doc},
    {NULL, NULL, 0, NULL},
};

static int set_version(PyObject *module) { return PyModule_AddIntConstant(module, "VERSION", VERSION); }

static PyModuleDef_Slot steps[] = {{Py_mod_exec, (void *)set_version}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "rows", .m_doc = "What an exchange does with every row.",
    .m_methods = methods, .m_slots = steps,
};

PyMODINIT_FUNC PyInit_rows(void) { return PyModuleDef_Init(&definition); }
