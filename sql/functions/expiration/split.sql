create or replace function expiration.split(low integer, high integer, suspect integer) returns integer[]
language sql immutable parallel safe
begin atomic
    select case
        when low = high then array[low, high]
        when suspect between low and high then
            case when suspect < high then array[suspect + 1, high] else array[]::integer[] end
            || array[suspect, suspect]
            || case when low < suspect then array[low, suspect - 1] else array[]::integer[] end
        else array[(low + high) / 2 + 1, high, low, (low + high) / 2]
    end;
end;

comment on function expiration.split(integer, integer, integer) is
'Parts of a range of positions, as a stack of pairs whose first part lies on top: the suspect apart from those on its two sides; halves where there is none.';
